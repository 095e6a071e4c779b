"""The native client and what may happen to a process: forks, signals, and many reads."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support import moto_server

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Exactly, Lost, Written
from airflow_provider_icechunk.engine.storage.clouds.forks import usable
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import static_credentials

PATIENCE = 60.0


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    with moto_server.running("bucket") as url:
        yield url


def storage_at(url: str, *, read_timeout: float = 60.0) -> S3Storage:
    return S3Storage(
        S3Settings(
            "bucket",
            "forks",
            region="us-east-1",
            endpoint_url=url,
            credentials=static_credentials("key", "hidden"),
            force_path_style=True,
            allow_http=True,
            read_timeout=read_timeout,
            retry=Backoff(tries=1),
        )
    )


def in_child(act: Callable[[], None]) -> int:
    """The exit code of a forked child that runs `act`; fails if it does not end."""
    child = os.fork()
    if not child:
        code = 1
        with suppress(BaseException):
            act()
            code = 0
        os._exit(code)
    ended = os.pidfd_open(child)
    try:
        if not select.select([ended], [], [], PATIENCE)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(ended)


@pytest.mark.parametrize("forks", [2, pytest.param(100, marks=pytest.mark.long)])
def test_a_bucket_goes_on_in_children_forked_after_and_during_its_use(
    moto_url: str, forks: int
) -> None:
    """Python's own pools fork by default up to 3.13."""
    storage = storage_at(moto_url)
    storage.put("shared", b"parent", expect=Anything())
    busy = threading.Event()
    busy.set()

    def read_on() -> None:
        while busy.is_set():
            assert storage.get("shared") is not None

    def use(number: int) -> None:
        assert not usable()
        found = storage.get("shared")
        assert found is not None
        assert found.data == b"parent"
        first = storage.put(f"child/{forks}/{number}", b"1", expect=Absent())
        assert isinstance(first, Written)
        assert storage.put(f"child/{forks}/{number}", b"2", expect=Absent()) == Lost()
        storage.put(f"child/{forks}/{number}", b"2", expect=Exactly(first.version))

    with ThreadPoolExecutor(1) as pool:
        reading = [pool.submit(read_on) for _ in range(1)]
        try:
            codes = [in_child(lambda number=number: use(number)) for number in range(forks)]
        finally:
            busy.clear()
        for one in reading:
            one.result(PATIENCE)
    assert codes == [0] * forks
    assert usable()
    for number in range(forks):
        found = storage.get(f"child/{forks}/{number}")
        assert found is not None
        assert found.data == b"2"


ANSWERS = """
import os, sys
def child(act):
    pid = os.fork()
    if not pid:
        try:
            print(act(), flush=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
def asked():
    from airflow_provider_icechunk.engine.storage.clouds.forks import usable
    return usable()
"""
USE = """
import obstore
store = obstore.store.MemoryStore()
obstore.put(store, "a", b"1")
"""


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("child(asked)", "True"),
        ("import obstore\nchild(asked)", "False"),
        ("asked()\nimport obstore\nchild(asked)", "False"),
        (USE + "print(asked())", "True"),
        (USE + "child(asked)", "False"),
        ("asked()" + USE + "child(asked)", "False"),
    ],
    ids=[
        "nobody uses it",
        "perhaps used by others before this package came",
        "perhaps used by others",
        "used here",
        "used by others before this package came",
        "used by others",
    ],
)
def test_a_child_knows_whether_anybody_used_the_native_client_before(
    program: str, answer: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ANSWERS + program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert ran.stdout.strip() == answer


class Interrupted(Exception):
    """Raised by the handler of a signal, as Airflow does for a task that is to end."""


def test_a_signal_ends_a_write_to_a_store_that_never_answers(moto_url: str) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    storage = storage_at(f"http://127.0.0.1:{silent.getsockname()[1]}", read_timeout=1.0)

    def stop(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            storage.put("a", b"1", expect=Absent())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        silent.close()
    sound = storage_at(moto_url)
    sound.put("after", b"1", expect=Anything())
    assert sound.get("after") is not None


def test_many_reads_keep_no_memory(moto_url: str) -> None:
    storage = storage_at(moto_url)
    storage.put("large", bytes(8 << 20), expect=Anything())
    space = memoryview(bytearray(8 << 20))

    def read(times: int) -> int:
        for _ in range(times):
            assert storage.get_into("large", 0, space) == len(space)
        status = Path("/proc/self/statm").read_text()
        return int(status.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    assert read(20) - read(5) < 64 << 20
