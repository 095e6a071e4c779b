"""Waiting for a branch to move or a tag to appear, in a worker or deferred to the triggerer.

Nothing is remembered on the sensor between polls. May import `hooks`, `triggers` and `airflow`; the
engine inside methods only.
"""
