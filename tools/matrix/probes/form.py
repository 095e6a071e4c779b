"""The connection form and the pages, as Airflow's API server gives them to a browser."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = "admin:admin"
PASSWORDS = Path(os.environ["AIRFLOW_HOME"], "simple_auth_manager_passwords.json.generated")
FIELDS = {"storage", "prefix", "region", "endpoint_url", "session_token", "aws_conn_id"}


def main() -> int:
    """Ask the API server for the form of the connection type, and for the first page."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    with TestClient(create_app(apps="core")) as client:
        login = {"username": "admin", "password": json.loads(PASSWORDS.read_text())["admin"]}
        token = client.post("/auth/token", json=login).json()["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        forms = client.get("/ui/connections/hook_meta", headers=headers).json()
        (form,) = (form for form in forms if form["connection_type"] == "icechunk")
        missing = FIELDS - set(form["extra_fields"] or {})
        assert not missing, f"the form lacks {sorted(missing)}: {form}"
        assert form["standard_fields"]["host"]["title"] == "Bucket, container or directory", form
        answer = client.get("/icechunk/", headers=headers)
        assert answer.status_code == 200, answer.text[-500:]
        assert "Icechunk" in answer.text
        client.cookies.clear()
        refused = client.get("/icechunk/")
        assert refused.status_code in (401, 403), refused.status_code
    print("the form has its fields, the page opens after a login only")
    return 0


if __name__ == "__main__":
    sys.exit(main())
