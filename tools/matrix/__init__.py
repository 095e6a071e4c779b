"""The releases this project runs with: an environment for each row of releases, and the results.

`rows.toml` says which releases go together and what is checked; `pins/` has the exact versions of
each row; `results.json` has the latest results, from which `docs/compatibility.md` is generated.
"""
