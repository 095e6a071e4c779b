"""The provider's pages in Airflow's web server.

The top of the Airflow layer: may import every other package of it, and nothing imports this one.
Request handlers import the engine; modules do not.
"""

import airflow_provider_icechunk.compat  # noqa: F401 - says what to install without Airflow
