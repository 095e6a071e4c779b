"""The application file for `spark-submit`; everything is in `submit`.

Python puts the folder of this file first on its path, so nothing next to it may have the name of a
standard library module.
"""

from airflow_provider_icechunk.spark.submit import run_job

if __name__ == "__main__":
    run_job()
