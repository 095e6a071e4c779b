"""`@task` decorators whose function writes to a session that is committed when it returns.

May import `operators` and whatever operators may import; the engine inside methods only.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
