"""Links on a task's page to what the task created, such as its snapshot.

May import `hooks` and `airflow`. The API server renders links: they read XCom, never storage.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
