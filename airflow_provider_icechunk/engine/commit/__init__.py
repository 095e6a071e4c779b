"""One commit: plan, store, move the branch, or rebase and try again.

`commit.py` is the commit from top to bottom. Whoever dies on the way leaves the branch at the old
or at the new snapshot, and nothing is deleted.
"""
