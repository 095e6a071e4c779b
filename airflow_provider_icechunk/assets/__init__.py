"""Icechunk repositories as Airflow assets: their URIs, and the watchers that follow them.

May import `triggers`, `hooks` and `airflow`. The scheduler and the API server load this package, so
it reads no storage.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
