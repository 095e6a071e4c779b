"""Transactional array pipelines on Apache Airflow: the Icechunk format in pure Python.

Importing this package imports nothing else: Airflow reads provider metadata while it configures
itself. The engine's public door is `airflow_provider_icechunk.api`.
"""

__version__ = "0.1.0"
