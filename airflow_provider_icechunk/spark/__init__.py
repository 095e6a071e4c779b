"""Array jobs on Spark: plans, tasks that run on executors, the data source.

Executors have no Airflow and no right to commit: they write chunk files and return columns of
references. May import `repository` and what lies below it, and `pyspark`; never Airflow.
"""
