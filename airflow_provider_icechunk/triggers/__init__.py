"""Triggers: the asynchronous side of sensors and asset watchers.

A trigger is serialised with its arguments and may run twice at once, so it keeps no other state.
May import `hooks` and `airflow`; the engine inside `run` only.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
