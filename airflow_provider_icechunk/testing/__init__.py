"""Test helpers, shipped so that users can test their own pipelines and storages.

Storages that crash, lose responses or are slow, the suite that every storage must pass, and a
simulator of whole workloads. May import the whole engine up to `api`, and `conformance` needs
pytest; never Airflow. Nothing else in the package imports this.
"""
