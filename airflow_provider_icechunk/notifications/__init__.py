"""Callbacks for the end of a DAG run or task.

May import `hooks`, `operators` and `airflow`; the engine inside methods only.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
