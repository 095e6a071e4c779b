"""What happens when a Dag run or a task ends, beside its tasks.

May import `hooks`, `operators` and `airflow`; the engine inside methods only.
"""
