"""Everything that knows neither Airflow nor PySpark.

The rooms, lowest first; a room may import only rooms below it: world < budget | retry | concurrency
| display | logs | closed < counters < format | storage < virtual < refs < objects < leases < core <
opening < tree < history < commit < workers < maintenance < migration < zarr_store < arrays <
sessions < xarray_io < repository < checks | datasets < pipelines | ingest.
"""
