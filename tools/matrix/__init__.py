"""What this project runs with: an environment for each row of releases, and what was seen there.

`rows.toml` says which releases go together and what is checked; `pins/` has the exact versions of
each row; `results.json` has what was seen last, and `docs/compatibility.md` is made from it.
"""
