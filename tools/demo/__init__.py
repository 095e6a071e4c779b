"""The tour: a real Airflow and a real Spark on this machine, from an empty folder to a picture.

`python -m tools.demo` runs it, `python -m tools.demo.ui` starts Airflow's web interface with the
same DAGs. Everything they create is below `.demo`.
"""
