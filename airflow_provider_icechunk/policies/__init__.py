"""Which failures are worth a retry.

May import `hooks`, `exceptions` and `airflow`. DAG files name policies, workers evaluate them.
"""
