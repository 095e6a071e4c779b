"""Many processes committing to one branch of a repository in a bucket."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.model import Case, Goal, Workload
from benchmarks.workloads.arrays import make_array, noise, open_array

PROCESSES = 8
CHUNK = 4096


def _writers(case: Case) -> list[subprocess.Popen[str]]:
    """Processes that have opened the repository and wait for a line on their input."""
    session = case.create().writable_session("main")
    make_array(session.store, PROCESSES * case.size, CHUNK)
    session.commit("array")
    fields = {**asdict(case), "folder": str(case.folder)}
    module = "benchmarks.workloads.concurrent"
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(fields), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for writer in writers:
        assert writer.stdout is not None
        if writer.stdout.readline() != "ready\n":
            raise RuntimeError("a writing process did not start")
    return writers


def _let_go(case: Case, writers: list[subprocess.Popen[str]]) -> None:
    del case
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    codes = [writer.wait() for writer in writers]
    assert not any(codes), codes


def _nothing_lost(case: Case, writers: Any, result: None) -> None:
    del writers, result
    repository = case.open()
    commits = PROCESSES * case.size
    assert len(list(repository.ancestry(branch="main"))) == commits + 2
    data = open_array(repository.readonly_session("main").store)[:]
    assert (data.reshape(commits, CHUNK) == noise(CHUNK)).all()


def _commit_own_chunks(case: Case, writer: int) -> None:
    case.import_everything()
    repository = case.open()
    data = noise(CHUNK)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        sys.exit("the measuring process is gone")
    for number in range(case.size):
        session = repository.writable_session("main")
        start = (writer * case.size + number) * CHUNK
        open_array(session.store, mode="r+")[start : start + CHUNK] = data
        session.commit(
            f"{writer}: {number}",
            rebase_with=case.library.ConflictDetector(),
            rebase_tries=10_000,
        )


WORKLOADS = (
    Workload(
        name="writers",
        title=f"{PROCESSES} processes, {{size}} commits each, one branch on S3",
        sizes=(2, 6, 20),
        quick=0,
        goals=(Goal(1.0),),
        place="s3",
        setup=_writers,
        run=_let_go,
        check=_nothing_lost,
    ),
)

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    _commit_own_chunks(Case(**{**given, "folder": Path(given["folder"])}), int(sys.argv[2]))
