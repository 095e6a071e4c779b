"""One commit: plan, store, move the branch, or rebase and try again.

`commit.py` is the commit from top to bottom. A process that dies on the way leaves the branch at
the old or the new snapshot, and nothing is deleted.
"""
