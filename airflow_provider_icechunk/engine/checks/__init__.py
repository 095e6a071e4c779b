"""Quality checks of the arrays of a version: what they are, and running them.

May import `sessions` and `xarray_io`; neither Airflow nor Spark.
"""
