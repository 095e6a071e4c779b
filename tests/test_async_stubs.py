"""The `*_async` twins are visible to type checkers, with the types of what they run."""

import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_icechunk.api as api
from tools import async_stubs

USE = """
import airflow_provider_icechunk.api as icechunk

async def use(storage: icechunk.Storage) -> None:
    repository = await icechunk.Repository.open_async(storage)
    reveal_type(await repository.lookup_branch_async("main"))
    session = await repository.writable_session_async("main")
    reveal_type(await session.commit_async("message"))
    fork = session.fork()
    await session.merge_async(fork)
    await session.store.set_virtual_ref_async("a/c/0", "s3://b/k", offset=0, length=1)
    await repository.lookup_branch_async(5)
    await repository.lookup_nothing_async("main")
"""


def test_the_stub_is_what_the_methods_say_today() -> None:
    made = async_stubs.formatted(async_stubs.stub())
    assert async_stubs.TARGET.read_text() == made, "run: python -m tools.async_stubs"


def test_every_twin_is_in_the_stub() -> None:
    text = async_stubs.TARGET.read_text()
    for cls in (api.Repository, api.Session, api.IcechunkStore):
        names = [name for name, *_ in async_stubs.twins(cls)]
        assert names
        assert [name for name in names if f"async def {name}(" not in text] == []


@pytest.mark.timeout(600)
def test_a_type_checker_knows_what_awaiting_a_twin_takes_and_gives(tmp_path: Path) -> None:
    file = tmp_path / "use.py"
    file.write_text(USE)
    answer = subprocess.run(
        [sys.executable, "-m", "mypy", str(file)],
        cwd=async_stubs.TARGET.parents[2],  # where the linter has left what it knows
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in answer.stdout.splitlines() if str(file.name) in line]
    assert [line for line in lines if 'note: Revealed type is "str"' in line] == lines[:2], lines
    assert [line.rpartition("  ")[2] for line in lines[2:]] == ["[arg-type]", "[attr-defined]"], (
        lines
    )
