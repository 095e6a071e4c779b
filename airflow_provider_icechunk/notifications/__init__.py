"""Callbacks for the end of a DAG run or task.

May import `hooks`, `operators` and `airflow`; the engine inside methods only.
"""
