"""The tour: a real Airflow and a real Spark on this machine, from an empty folder to a picture.

`python -m tools.demo` runs it, `python -m tools.demo.ui` starts Airflow's web page on the same
Dags. Everything they make is below `.demo`.
"""
