"""Operators: create, open a session, commit, branch, tag, submit to Spark, maintain.

An operator holds templated values until `execute` opens the hook and calls the engine. May
import `hooks`, `triggers`, `assets`, `links` and `airflow`; the engine inside `execute` only.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
