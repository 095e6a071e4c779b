"""Everything that knows neither Airflow nor PySpark.

The rooms, lowest first; a room may import only rooms below it: world < budget | retry | concurrency
< format | storage < virtual < refs < objects < leases < core < opening < tree < history < commit <
workers < maintenance < migration < zarr_store < sessions < repository < datasets < pipelines |
ingest.
"""
