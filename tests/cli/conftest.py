"""A small repository with two branches and a tag, and a way to run commands on it in-process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.arrays import GROUP, array, put
from support.commands import Answer, Command, Made

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.cli.run import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command as `python -m airflow_provider_icechunk` would."""

    def run(*words: object) -> Answer:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as leaving:
            code = int(str(leaving.code))
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """main: root, base, m1, m2; dev from base: d1; tag v1 at base."""
    path = tmp_path / "repository"
    repository = Repository.create(local_filesystem_storage(str(path)))
    ids = {"root": repository.lookup_branch("main")}

    session = repository.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/group", GROUP)
    session.tree.put_document("/group/a", array([40, 4], [10, 2]))
    put(session, "/group/a", (0, 0), b"inline")
    put(session, "/group/a", (3, 1), b"native" * 200)
    ids["base"] = session.commit("base of it", metadata={"run": 7})
    repository.create_branch("dev", ids["base"])
    repository.create_tag("v1", ids["base"])

    def change(branch: str, place: int, message: str) -> None:
        session = repository.writable_session(branch)
        put(session, "/group/a", (place, 0), message.encode())
        ids[message] = session.commit(message)

    change("main", 1, "m1")
    change("dev", 2, "d1")
    change("main", 2, "m2")
    return Made(path, ids)
