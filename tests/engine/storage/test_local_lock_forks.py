"""Locks and processes that are born meanwhile: a lock belongs to the process that took it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from airflow_provider_icechunk.engine.storage.local import locks
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER, FolderLocks
from airflow_provider_icechunk.exceptions import AccessDeniedError

BESIDE_WRITERS = """
import fcntl, json, multiprocessing, os, sys, threading, time
from contextlib import suppress
from pathlib import Path
from airflow_provider_icechunk.engine.storage.base import Absent, Exactly, Written
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER

method, root = sys.argv[1], Path(sys.argv[2])
storage = LocalStorage(root, durable=False)
over, written = threading.Event(), [0] * 4
sys.setswitchinterval(1e-6)

def write(number):
    key = f"refs/branch.{number}/ref.json"
    outcome = storage.put(key, b"0", expect=Absent())
    while not over.is_set():
        outcome = storage.put(key, b"more", expect=Exactly(outcome.version))
        assert isinstance(outcome, Written)
        written[number] += 1

def holds(pid):
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return any(LOCK_FOLDER in link for link in links)

def is_free(path):
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True

writers = [threading.Thread(target=write, args=[number], daemon=True) for number in range(4)]
for one in writers:
    one.start()
context = multiprocessing.get_context(method)
children = [context.Process(target=time.sleep, args=[600], daemon=True) for _ in range(100)]
progress = []
for one in children:
    before = sum(written)
    one.start()
    while sum(written) == before and any(writer.is_alive() for writer in writers):
        time.sleep(0)
    progress.append(sum(written) > before)
holding = [one.pid for one in children if holds(one.pid)]
over.set()
for one in writers:
    one.join()
held = [path.name for path in (root / LOCK_FOLDER).iterdir() if not is_free(path)]
print(json.dumps({"holding": holding, "held": held, "progress": all(progress)}))
for one in children:
    one.kill()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_no_child_of_a_process_with_writers_ever_holds_a_lock(tmp_path: Path, method: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", BESIDE_WRITERS, method, str(tmp_path)]
    told = subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert json.loads(told.stdout) == {"holding": [], "held": [], "progress": True}


NO_HANDLERS = "import os; os.register_at_fork = lambda **_: None"
FORKS_AND_DIES = """
import fcntl, os, signal, sys, time
from pathlib import Path
from airflow_provider_icechunk.engine.storage.local import locks

def fork():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"born")
        time.sleep(600)
        os._exit(0)
    os.read(reading, 4)
    print(child, flush=True)

def wrapped(real, moment):
    def act(*given):
        result = real(*given)
        if moment == "locked" and given[1:] != (fcntl.LOCK_UN,):
            fork()
        return result
    return act

fcntl.flock = wrapped(fcntl.flock, sys.argv[2])
with locks.FolderLocks(Path(sys.argv[1])).holding("key"):
    if sys.argv[2] == "holding":
        fork()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def is_free_after_its_holder(root: Path, moment: str, script: str) -> bool:
    """Whether a lock is free whose holder was killed while a child of it lives on."""
    command = [sys.executable, "-W", "ignore", "-c", script, str(root), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert holder.wait() == -signal.SIGKILL
            [lock] = (root / LOCK_FOLDER).iterdir()
            return locks._lockable_here(lock)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("moment", ["locked", "holding"])
def test_a_lock_ends_with_its_killed_holder_though_a_child_lives_on(
    tmp_path: Path, moment: str
) -> None:
    assert is_free_after_its_holder(tmp_path, moment, FORKS_AND_DIES)


def test_without_a_handler_of_forks_a_child_would_keep_the_lock(tmp_path: Path) -> None:
    assert not is_free_after_its_holder(tmp_path, "holding", f"{NO_HANDLERS}\n{FORKS_AND_DIES}")


FORKS_WHILE_MAKING = """
import os, signal, threading
from airflow_provider_icechunk.engine.concurrency import PerProcess

begun, over = threading.Event(), threading.Event()

def slow():
    begun.set()
    over.wait()

threading.Thread(target=PerProcess(slow).get, daemon=True).start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(3)
    os._exit(PerProcess(lambda: 7).get())
_, status = os.waitpid(child, 0)
over.set()
print(os.waitstatus_to_exitcode(status))
"""


FORKS_WHILE_DECODING = """
import os, signal, threading
from airflow_provider_icechunk.engine import budget

begun, over = threading.Event(), threading.Event()

def decode():
    with budget._SHARED._changed:
        begun.set()
        over.wait()

threading.Thread(target=decode, daemon=True).start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(3)
    with budget.Purse(1, where="a file") as purse:
        purse.charge(1 << 20)
    os._exit(7)
_, status = os.waitpid(child, 0)
over.set()
print(os.waitstatus_to_exitcode(status))
"""


FORKS_WHILE_LOADING = """
import os, signal, threading
from airflow_provider_icechunk.engine.format.model import Deferred
from airflow_provider_icechunk.engine.objects.cache import WeightedCache

begun, over = threading.Barrier(3), threading.Event()

def slow():
    begun.wait()
    over.wait()
    return {}

cache, deferred = WeightedCache(10, lambda _: 1), Deferred(0, slow)
threading.Thread(target=cache.get, args=("key", slow), daemon=True).start()
threading.Thread(target=deferred.content, daemon=True).start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(3)
    Deferred(0, dict).content()
    os._exit(cache.get("key", lambda: 7))
_, status = os.waitpid(child, 0)
over.set()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_child_loads_again_what_a_thread_of_its_parent_was_loading() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS_WHILE_LOADING]
    told = subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert int(told.stdout) == 7


@pytest.mark.parametrize(
    "script", [FORKS_WHILE_MAKING, FORKS_WHILE_DECODING], ids=["making", "decoding"]
)
@pytest.mark.parametrize(
    ("preamble", "ends_with"), [("", 7), (NO_HANDLERS, -signal.SIGALRM)], ids=["with", "without"]
)
def test_a_child_goes_on_though_a_thread_that_it_does_not_have_was_busy(
    preamble: str, ends_with: int, script: str
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", f"{preamble}\n{script}"]
    told = subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert int(told.stdout) == ends_with


def test_a_lock_is_free_when_its_holder_is_done_though_somebody_copied_the_descriptor(
    tmp_path: Path,
) -> None:
    with FolderLocks(tmp_path).holding("key"):
        [lock] = (tmp_path / LOCK_FOLDER).iterdir()
        [descriptor] = locks._Opened.descriptors
        copy = os.dup(descriptor)
    try:
        assert locks._lockable_here(lock)
    finally:
        os.close(copy)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_leaves_the_block_of_its_parent_frees_nothing_and_closes_nothing(
    tmp_path: Path,
) -> None:
    with ExitStack() as block:
        block.enter_context(FolderLocks(tmp_path).holding("key"))
        [lock] = (tmp_path / LOCK_FOLDER).iterdir()
        [descriptor] = locks._Opened.descriptors
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(sys.stderr.fileno(), descriptor)
                block.close()
                os.fstat(descriptor)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not locks._lockable_here(lock)
    assert locks._lockable_here(lock)


@contextmanager
def shared_folder(mode: int) -> Iterator[Path]:
    """A folder that others reach, which those of pytest are not, made with the usual umask."""
    umask = os.umask(0o022)
    try:
        with TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            root = Path(name) / "root"
            root.mkdir()
            root.chmod(mode)
            yield root
    finally:
        os.umask(umask)


@contextmanager
def somebody_else(group: int) -> Iterator[None]:
    """As another user of a group; only root can become one."""
    if os.geteuid() != 0:
        pytest.skip("needs to change the user")
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(group)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770, 0o775, 0o2775, 0o777])
def test_lock_files_can_be_written_to_by_those_who_can_write_into_their_folder(mode: int) -> None:
    with shared_folder(mode) as root:
        with FolderLocks(root).holding("key"):
            pass
        folder = root / LOCK_FOLDER
        [lock] = folder.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == mode
        assert stat.S_IMODE(lock.stat().st_mode) == mode & 0o666


def test_a_colleague_of_the_group_takes_the_same_locks_and_makes_new_ones() -> None:
    with shared_folder(0o2775) as root:
        os.chown(root, -1, 4242)
        ours = FolderLocks(root, patience=0.05)
        with ours.holding("key"):
            pass
        with somebody_else(4242):
            with ours.holding("key"):
                pass
            with ours.holding("another key"):
                pass
        with ours.holding("another key"):
            pass
        assert len(list((root / LOCK_FOLDER).iterdir())) == 2


def test_a_lock_file_that_may_only_be_read_still_excludes() -> None:
    with shared_folder(0o755) as root:
        locked = FolderLocks(root, patience=0.05)
        with locked.holding("key"):
            pass
        with somebody_else(4242):
            with locked.holding("key"):
                [lock] = (root / LOCK_FOLDER).iterdir()
                assert not locks._lockable_here(lock)
            with pytest.raises(AccessDeniedError, match=r"lock file .*Permission denied"):
                locked.holding("a new one").__enter__()


def test_a_file_system_that_locks_only_what_may_be_written_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def as_nfs(descriptor: int, operation: int) -> None:
        writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        if operation & fcntl.LOCK_EX and not writable:
            raise OSError(errno.EBADF, "bad descriptor")
        flock(descriptor, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", as_nfs)
    with shared_folder(0o755) as root:
        locked = FolderLocks(root)
        with locked.holding("key"):
            pass
        with somebody_else(4242), pytest.raises(AccessDeniedError, match="Give everybody"):
            locked.holding("key").__enter__()


def test_a_lock_is_taken_though_others_remove_its_folder_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, removed = Path.mkdir, []

    def raced(folder: Path, *given: object, **named: object) -> None:
        mkdir(folder, *given, **named)  # type: ignore[arg-type]
        if folder.name == LOCK_FOLDER and len(removed) < 3:
            removed.append(folder)
            folder.rmdir()

    monkeypatch.setattr(Path, "mkdir", raced)
    with FolderLocks(tmp_path).holding("key"):
        [lock] = (tmp_path / LOCK_FOLDER).iterdir()
        assert not locks._lockable_here(lock)
    assert len(removed) == 3
