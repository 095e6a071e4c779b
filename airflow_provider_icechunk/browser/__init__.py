"""The repository browser: typed answers about repositories, and the page that draws them.

May import `api`, the engine and FastAPI, never Airflow: `plugins` adds login and permissions, the
command line serves it on loopback. Nothing here writes, and every request is bounded in time,
requests and bytes (`bounds`). The sources of the page are in `ui/`, its build in `static/`.
"""
