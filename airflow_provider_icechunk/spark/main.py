"""The application file for `spark-submit`; everything is in `job`."""

from airflow_provider_icechunk.spark.job import main

if __name__ == "__main__":
    main()
