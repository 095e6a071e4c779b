"""The command line: the maintenance and inspection verbs for people at a terminal.

`python -m airflow_provider_icechunk` needs no Airflow; `airflow icechunk` has the same commands and
can take a repository from a connection. Commands import the engine when they run, not before: the
`airflow` command loads this package whenever it starts. What deletes shows its plan first and asks.
May import `hooks`, and `api` and what lies below inside commands only.
"""
