"""What a folder must withstand: hostile keys and links, unfinished files, other programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Exactly,
    Lost,
    Put,
    Written,
)
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    InvalidInputError,
    Kind,
    StorageError,
)
from airflow_provider_icechunk.testing.conformance import HOSTILE_KEYS

KEY = "refs/branch.main/ref.json"
NOBODY = 65534


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# Never outside of the root


def test_no_hostile_key_makes_a_file_anywhere(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "inside" / "root")
    for key in HOSTILE_KEYS:
        with pytest.raises(InvalidInputError):
            storage.put(key, b"x", expect=Anything())
    assert files_below(tmp_path) == set()


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(["a", "/", ".", "..", "\\", "%2e", "\x00", "~", "\u202e", "#1"]),
        max_size=12,
    ).map("".join)
)
def test_generated_keys_stay_inside_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str
) -> None:
    outer = tmp_path_factory.getbasetemp() / "generated"
    storage = LocalStorage(outer / "root", durable=False)
    try:
        storage.put(key, b"x", expect=Anything())
    except (InvalidInputError, StorageError):
        pass
    else:
        found = storage.get(key)
        assert found is not None
        storage.delete([key])
    outside = {path for path in outer.rglob("*") if not path.is_relative_to(outer / "root")}
    assert outside <= {outer / "root"}


def test_a_linked_folder_is_refused_by_every_verb(tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "chunks").symlink_to(secret)
    storage = LocalStorage(root)
    verbs = [
        lambda: storage.get("chunks/secret"),
        lambda: storage.head("chunks/secret"),
        lambda: storage.put("chunks/new", b"", expect=Anything()),
        lambda: storage.put("chunks/new", b"", expect=Absent()),
        lambda: storage.delete(["chunks/secret"]),
        lambda: list(storage.scan("chunks/")),
        lambda: list(storage.scan("")),
        lambda: storage.list_folders("chunks/"),
        lambda: storage.list_folders(""),
    ]
    for verb in verbs:
        with pytest.raises(StorageError) as caught:
            verb()
        assert caught.value.kind is Kind.OUTSIDE_ROOT
    assert files_below(secret) == {"secret"}


def test_a_linked_file_is_not_read_and_not_written_through(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "ref").symlink_to(secret)
    storage = LocalStorage(root)
    with pytest.raises(StorageError) as caught:
        storage.get("ref")
    assert caught.value.kind is Kind.OUTSIDE_ROOT
    assert storage.put("ref", b"new", expect=Absent()) == Lost()
    storage.put("ref", b"new", expect=Anything())
    assert secret.read_bytes() == b"secret"


def test_a_linked_root_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStorage(tmp_path / "link").put(KEY, b"x", expect=Absent())
    assert LocalStorage(tmp_path / "real").get(KEY) is not None


def test_a_pipe_in_the_folder_neither_blocks_nor_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert LocalStorage(tmp_path).get("pipe") is None


@contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody whom permissions stop: root may read everything."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


def test_a_folder_that_may_not_be_read_is_an_error_and_not_empty() -> None:
    # Not in the folder of pytest, whose parents are closed to others.
    with TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        storage = LocalStorage(root)
        storage.put("chunks/a", b"", expect=Anything())
        with unprivileged():
            assert [one.key for one in storage.scan("chunks/")] == ["chunks/a"]
        (root / "chunks").chmod(0)
        with unprivileged(), pytest.raises(AccessDeniedError):
            list(storage.scan("chunks/"))
        (root / "chunks").chmod(0o700)


# Unfinished files and lock files


def test_unfinished_files_and_locks_are_never_listed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"1", expect=Absent())
    assert isinstance(written, Written)
    storage.put(KEY, b"2", expect=Exactly(written.version))
    (tmp_path / "refs" / ".icechunk#000000000000000001").write_bytes(b"torn")
    (tmp_path / "refs" / "branch.main" / "ref.json#1").write_bytes(b"torn")
    assert (tmp_path / LOCK_FOLDER).is_dir()
    assert [one.key for one in storage.scan("")] == [KEY]
    assert storage.list_folders("") == ["refs"]


def test_writes_leave_no_unfinished_files(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"1", expect=Absent())
    assert isinstance(written, Written)
    storage.put(KEY, b"2", expect=Exactly(written.version))
    storage.put(KEY, b"3", expect=Exactly(written.version))
    storage.put(KEY, b"3", expect=Absent())
    storage.put("chunks/a", b"3", expect=Anything())
    storage.now()
    assert not [name for name in files_below(tmp_path) if "#" in name]


# Versions


def test_rewrites_in_one_tick_of_the_clock_have_versions_of_their_own(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, durable=False)
    outcome = storage.put(KEY, b"x" * 10_000, expect=Absent())
    seen = []
    for _ in range(300):
        assert isinstance(outcome, Written)
        seen.append(outcome.version)
        outcome = storage.put(KEY, b"x" * 10_000, expect=Exactly(outcome.version))
    assert len(set(seen)) == len(seen)


def test_a_rewrite_by_another_program_is_noticed_even_with_the_same_time(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"aaaa", expect=Absent())
    assert isinstance(written, Written)
    path = tmp_path / KEY
    status = path.stat()
    path.write_bytes(b"bbbb")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert storage.put(KEY, b"cccc", expect=Exactly(written.version)) == Lost()


@pytest.mark.parametrize("immutable", [False, True])
def test_a_delete_that_fails_is_reported_for_its_key_alone(tmp_path: Path, immutable: bool) -> None:
    storage = LocalStorage(tmp_path)
    storage.put_many([Put("chunks/a", b""), Put("chunks/b/inner", b"")])
    deleted = storage.delete(["chunks/a", "chunks/b"], immutable=immutable)
    assert deleted.keys == ("chunks/a",)
    assert list(deleted.failed) == ["chunks/b"]
    assert storage.get("chunks/b/inner") is not None


def test_the_first_object_of_a_long_listing_is_found_without_a_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.put_many([Put(f"refs/branch.main/{number:03}", b"") for number in range(100)])
    looked_at: list[str] = []
    look = os.lstat
    monkeypatch.setattr(
        "airflow_provider_icechunk.engine.storage.local.scan.os.lstat",
        lambda path: looked_at.append(str(path)) or look(path),
    )
    assert next(storage.scan("refs/branch.main/")).key == "refs/branch.main/000"
    assert [Path(path).name for path in looked_at] == ["000"]
