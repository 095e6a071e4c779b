"""Wait for a branch to move or a tag to appear, in a worker or in the triggerer.

Sensors keep no state between polls. May import `hooks`, `triggers` and `airflow`; the engine inside
methods only.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
