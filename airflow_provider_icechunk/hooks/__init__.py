"""The connection to a repository: from an Airflow connection to the engine's `Repository`.

May import `airflow` and, inside methods only, `api`: Dag files are parsed every few seconds and
must not pay for the engine. Operators, sensors and triggers reach the engine through here.
"""
