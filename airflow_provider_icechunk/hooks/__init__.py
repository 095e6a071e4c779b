"""From an Airflow connection to the engine's `Repository`.

May import `airflow` and, inside methods only, `api`: DAG files are parsed every few seconds and
must not load the engine. Operators, sensors and triggers reach the engine through here.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
