"""Links on a task's page to what the task created, such as its snapshot.

May import `hooks` and `airflow`. The API server renders links: they read XCom, never storage.
"""
