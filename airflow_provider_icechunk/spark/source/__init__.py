"""The data source `icechunk`: batch reads and writes, streams in both directions."""

from airflow_provider_icechunk.spark.releases import missing

try:
    import pyspark.sql.datasource  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        str(missing("the data source `icechunk`", "4.0", "use the functions of `spark`"))
    ) from error
