"""Registers the data source: Spark imports every top-level module named `pyspark_*`.

The build installs this file as the top-level module `pyspark_icechunk`.
"""

from airflow_provider_icechunk.spark.source.source import IcechunkSource as DefaultSource

__all__ = ["DefaultSource"]
