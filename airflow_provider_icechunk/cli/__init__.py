"""The command line: inspect and maintain repositories from a terminal.

`python -m airflow_provider_icechunk` needs no Airflow; `airflow icechunk` has the same commands and
can take a repository from a connection. Commands import the engine only when they run, because the
`airflow` command loads this package at every start. Commands that delete show their plan and ask.
May import `hooks`; `api` and the layers below it only inside commands.
"""
