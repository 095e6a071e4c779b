"""What pipelines do with a repository; used by Airflow, the command line and Spark.

Everything here takes a `Repository`, never a hook or a connection, and can be run again after a
failure. Modules that operators import at the top load neither NumPy nor Zarr.
"""
