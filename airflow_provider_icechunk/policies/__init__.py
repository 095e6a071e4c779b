"""Which failures are worth a retry.

May import `hooks`, `exceptions` and `airflow`. DAG files name policies, workers evaluate them.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
