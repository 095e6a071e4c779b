"""What the provider adds to Airflow's web server.

The top of the Airflow layer: may import every other package of it, and nothing imports this one.
The engine is imported inside request handlers only.
"""
