"""The Zarr store of a session: keys of the Zarr specification over nodes and chunk references.

The place where Zarr's asynchronous interface meets the synchronous engine. May import `repository`
and what lies below it, and `zarr`; never Airflow or Spark.
"""
