"""Helpers for tests, shipped so that users can test their own pipelines with them.

Storages that crash, lose answers or are slow, to be wrapped around a real one. May import
the whole engine up to `api`; never Airflow. Nothing else in the package imports this.
"""
