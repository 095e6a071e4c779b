"""Operators: create, open a session, commit, branch, tag, submit to Spark, maintain.

An operator holds templated values until `execute` opens the hook and calls the engine. May
import `hooks`, `triggers`, `assets`, `links` and `airflow`; the engine inside `execute` only.
"""
