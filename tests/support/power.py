"""A disk that records what was written and what was synced, and simulates a power loss.

Everything that a local storage asks of the operating system is recorded while it happens. After any
number of those steps the power can fail: what was not synced is there, gone, or torn, as on a file
system that keeps no order among what was not synced.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_icechunk.engine.storage.base import is_staged
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER

_UNKNOWN = [
    "replace",
    "symlink",
    "truncate",
    "ftruncate",
    "pwrite",
    "pwritev",
    "writev",
    "sendfile",
]


@dataclass(eq=False)
class File:
    """The bytes of a file, and those of them that are certainly on the disk."""

    data: bytes = b""
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    """Entries that are certainly on the disk, and changes that may not be, in order."""

    synced: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def entries(self, is_kept: bool = True) -> dict[str, File | Folder]:
        """What is there, with or without the changes that were not synced."""
        found: dict[str, File | Folder | None] = dict(self.synced)
        for change in self.pending if is_kept else ():
            found |= change
        return {name: node for name, node in found.items() if node is not None}


@dataclass(frozen=True)
class Loss:
    """What becomes of everything that was not synced."""

    name: str
    keeps: Callable[[str], bool]
    """Whether the changed entries of a folder, given by its path, are kept."""
    data: Callable[[File], bytes]


@dataclass(frozen=True)
class Image:
    """What is on the disk when the power is back."""

    step: int
    loss: str
    acknowledged: int
    """How many operations had been acknowledged."""
    files: Mapping[str, bytes]
    folders: frozenset[str]

    def put(self, base: Path) -> None:
        """Write it to a real folder."""
        for name in sorted(self.folders):
            (base / name).mkdir()
        for name, data in self.files.items():
            (base / name).write_bytes(data)


def _dropped(file: File) -> bytes:
    return file.synced


def _kept(file: File) -> bytes:
    return file.data


def _torn(file: File) -> bytes:
    return file.data if file.synced == file.data else file.data[: len(file.data) // 2]


def _zeroed(file: File) -> bytes:
    return file.data if file.synced == file.data else bytes(len(file.data))


FEW = (
    Loss("all of it", lambda _: False, _dropped),
    Loss("data, not names", lambda _: True, _dropped),
    Loss("half of the data", lambda _: True, _torn),
)
MORE = (
    *FEW,
    Loss("nothing", lambda _: True, _kept),
    Loss("data, replaced by zeros", lambda _: True, _zeroed),
    Loss("names, not data", lambda _: False, _kept),
)


class Disk:
    """A folder whose changes are recorded."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = _read(base)
        self.steps: list[Callable[[], object]] = []
        self._lock = threading.RLock()
        self._open: dict[int, str] = {}

    def acknowledge(self) -> None:
        """Note that the caller was told that an operation is done."""
        self.steps.append(lambda: "acknowledged")

    @contextmanager
    def recording(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Record what happens to the folder in the meantime. Nothing waits for the real disk."""
        now = _Live(_read(self.base))
        with monkeypatch.context() as patched:
            real = {name: getattr(os, name) for name in _Live.CALLS}
            for name in _Live.CALLS:
                patched.setattr(os, name, self._wrapped(name, real[name], now))
            for name in _UNKNOWN:
                patched.setattr(os, name, _refuse(name))
            yield
        assert _plain(now.root) == _plain(_read(self.base)), "something was not recorded"

    def _wrapped(self, name: str, real: Callable[..., Any], now: _Live) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with self._lock:
                result = None if name == "fsync" else real(*given, **named)
                step = self._step(name, given, result, now)
                if step is not None:
                    step(now.root)
                    self.steps.append(lambda: step)
                return result

        return call

    def _step(
        self, name: str, given: tuple[Any, ...], result: Any, now: _Live
    ) -> Callable[[Folder], None] | None:
        match name:
            case "open":
                return self._opened(given, result, now)
            case "close":
                self._open.pop(given[0], None)
                return None
            case "write" | "fsync":
                path = self._open.get(given[0])
                if path is None:
                    return None
                if name == "fsync":
                    return lambda root: _sync(root, path)
                data = bytes(given[1])[:result]
                return lambda root: _append(root, path, data)
        paths = [self._below(one) for one in given if isinstance(one, str | os.PathLike)]
        if any(path is None for path in paths):
            return None
        return {"rename": _rename, "link": _link, "unlink": _unlink, "mkdir": _mkdir}[name](*paths)

    def _opened(
        self, given: tuple[Any, ...], descriptor: int, now: _Live
    ) -> Callable[[Folder], None] | None:
        path = self._below(given[0])
        if path is None:
            return None
        self._open[descriptor] = path
        if not given[1] & os.O_CREAT or _find(now.root, path) is not None:
            return None
        return _make(path)

    def _below(self, path: str | os.PathLike[str]) -> str | None:
        """The path below the folder; `None` for what no power loss can harm: others and locks."""
        text = os.fspath(path)
        if text != str(self.base) and not text.startswith(f"{self.base}/"):
            return None
        return None if LOCK_FOLDER in text else text[len(str(self.base)) + 1 :]

    def images(self, *, thorough: bool = False) -> Iterator[Image]:
        """Every different state that a power loss after any step can leave."""
        acknowledged, seen = 0, set[object]()
        for number in range(len(self.steps) + 1):
            if number:
                step = self.steps[number - 1]()
                if callable(step):
                    step(self.root)
                else:
                    acknowledged += 1
            for loss in _losses(self.root, thorough):
                files, folders = _left(self.root, loss)
                shown = {name: data for name, data in files.items() if not is_staged(name)}
                key = (acknowledged, frozenset(shown.items()), frozenset(folders))
                if key not in seen:
                    seen.add(key)
                    yield Image(number, loss.name, acknowledged, files, frozenset(folders))


@dataclass
class _Live:
    """The current state of the folder."""

    root: Folder
    CALLS = ("open", "close", "write", "fsync", "rename", "link", "unlink", "mkdir")


def _losses(root: Folder, thorough: bool) -> Iterator[Loss]:
    yield from MORE if thorough else FEW
    unsynced = [path for path, folder in _folders(root) if folder.pending]
    for path in unsynced if len(unsynced) > 1 else ():
        yield Loss(f"all but {path}", lambda one, path=path: one == path, _kept)
        if thorough:
            yield Loss(f"only {path}", lambda one, path=path: one != path, _kept)


def _folders(folder: Folder, path: str = "") -> Iterator[tuple[str, Folder]]:
    yield path, folder
    for name, node in folder.entries().items():
        if isinstance(node, Folder):
            yield from _folders(node, f"{path}/{name}" if path else name)


def _left(root: Folder, loss: Loss) -> tuple[dict[str, bytes], set[str]]:
    files: dict[str, bytes] = {}
    folders: set[str] = set()

    def visit(folder: Folder, path: str) -> None:
        for name, node in folder.entries(loss.keeps(path)).items():
            here = f"{path}/{name}" if path else name
            if isinstance(node, Folder):
                folders.add(here)
                visit(node, here)
            else:
                files[here] = loss.data(node)

    visit(root, "")
    return files, folders


def _read(base: Path) -> Folder:
    """A real folder, all of it synced."""
    folder = Folder()
    for path in base.iterdir():
        if path.name == LOCK_FOLDER:
            continue
        if path.is_dir():
            folder.synced[path.name] = _read(path)
        else:
            data = path.read_bytes()
            folder.synced[path.name] = File(data, data)
    return folder


def _plain(root: Folder) -> tuple[dict[str, bytes], set[str]]:
    return _left(root, Loss("nothing", lambda _: True, _kept))


def _refuse(name: str) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> None:
        raise AssertionError(f"os.{name} is not recorded: teach the disk about it")

    return call


def _find(root: Folder, path: str) -> File | Folder | None:
    node: File | Folder | None = root
    for name in path.split("/") if path else ():
        node = node.entries().get(name) if isinstance(node, Folder) else None
    return node


def _parent(root: Folder, path: str) -> tuple[Folder, str]:
    above, _, name = path.rpartition("/")
    folder = _find(root, above)
    assert isinstance(folder, Folder), path
    return folder, name


def _change(root: Folder, path: str, node: File | Folder | None) -> None:
    folder, name = _parent(root, path)
    folder.pending.append({name: node})


def _file(root: Folder, path: str) -> File:
    file = _find(root, path)
    assert isinstance(file, File), path
    return file


def _make(path: str) -> Callable[[Folder], None]:
    return lambda root: _change(root, path, File())


def _mkdir(path: str) -> Callable[[Folder], None]:
    return lambda root: _change(root, path, Folder())


def _unlink(path: str) -> Callable[[Folder], None]:
    return lambda root: _change(root, path, None)


def _link(old: str, new: str) -> Callable[[Folder], None]:
    return lambda root: _change(root, new, _file(root, old))


def _rename(old: str, new: str) -> Callable[[Folder], None]:
    assert old.rpartition("/")[0] == new.rpartition("/")[0], "files move within their folder"

    def step(root: Folder) -> None:
        folder, name = _parent(root, new)
        folder.pending.append({old.rpartition("/")[2]: None, name: _file(root, old)})

    return step


def _append(root: Folder, path: str, data: bytes) -> None:
    _file(root, path).data += data


def _sync(root: Folder, path: str) -> None:
    node = _find(root, path)
    if isinstance(node, Folder):
        node.synced, node.pending = node.entries(), []
    elif node is not None:
        node.synced = node.data
