"""`python -m airflow_provider_icechunk`: the command line, without Airflow."""

import sys

from airflow_provider_icechunk.cli.run import main

if __name__ == "__main__":
    sys.exit(main())
