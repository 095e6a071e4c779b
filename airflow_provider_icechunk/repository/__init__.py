"""The engine: sessions, commits, history, maintenance. The only place format and storage meet.

Pure functions decide (what a commit writes, whether a rebase is clean, what may be deleted); short
effectful functions carry the decision out. May import `format`, `storage`, `virtual` and
`exceptions`; never Airflow, Spark or Zarr.
"""
