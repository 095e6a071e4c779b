"""Array jobs on Spark: plans, tasks that run on executors, the data source.

Executors have no Airflow and no right to commit: they write chunk files and return columns of
references. May import `zarr_store`, `repository` and what lies below, and `pyspark`; never Airflow.
"""

from pathlib import Path

APPLICATION = str(Path(__file__).with_name("main.py"))
"""The application file to give to `SparkSubmitOperator` or `spark-submit`."""
