"""Tools for testing pipelines that use this package, shipped for its users and used by its own.

Storages that crash, stall and lie, strategies and invariants. May import the whole engine up to
`api`; never Airflow. Nothing else in the package imports this.
"""
