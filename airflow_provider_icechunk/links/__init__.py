"""Buttons on a task's page that lead to what the task made, such as its snapshot.

May import `hooks` and `airflow`. Links are rendered by the API server: they read XCom, never
storage.
"""
