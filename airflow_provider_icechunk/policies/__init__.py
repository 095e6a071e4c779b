"""Which failures are worth another try.

May import `hooks`, `exceptions` and `airflow`. Dag files name policies, workers evaluate them.
"""
