"""What Spark looks for: it imports every top-level module named `pyspark_*` for its source.

The build installs this file as the top-level module `pyspark_icechunk`.
"""

from airflow_provider_icechunk.spark.source import IcechunkSource as DefaultSource

__all__ = ["DefaultSource"]
