"""List a folder tree in the order of keys, holding only one path of it in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

from airflow_provider_icechunk.engine.storage.base import Listed, is_staged

from .files import failure, outside
from .locks import LOCK_FOLDER, PROBE


def walk(folder: str, key: str, prefix: str) -> Iterator[Listed]:
    """Objects below `folder`, whose keys start with `key`, that also start with `prefix`.

    Keys are compared as whole strings, so a folder sorts as its name with the slash: `a-b` comes
    before the content of `a/`.
    """
    every_one = key.startswith(prefix)
    for name in _names(folder, key):
        here = key + name
        if name[-1] == "/":
            if here.startswith(prefix) or prefix.startswith(here):
                yield from walk(f"{folder}/{name[:-1]}", here, prefix)
        elif every_one or here.startswith(prefix):
            path = f"{folder}/{name}"
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise failure(error, "inspect", path) from error
            yield Listed(here, status.st_size, status.st_mtime_ns // 1000)


def folders_below(folder: str) -> list[str]:
    """Names of the folders directly in `folder` that contain at least one object."""
    return sorted(
        entry.name
        for entry in _entries(folder, "")
        if _is_folder(entry) and _holds_objects(entry.path)
    )


def unfinished_below(folder: str, key: str = "") -> Iterator[Listed]:
    """Files left by killed writers anywhere below a folder; `key` is its name with a slash.

    Unreadable folders are skipped: files that are not found do no harm.
    """
    try:
        with os.scandir(folder) as found:
            entries = list(found)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from unfinished_below(entry.path, f"{key}{entry.name}/")
            elif is_unfinished(key + entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield Listed(key + entry.name, status.st_size, status.st_mtime_ns // 1000)
    except OSError:
        return


def is_unfinished(name: str) -> bool:
    """Whether a file below the root is one that only killed writers leave."""
    folder, _, last = name.rpartition("/")
    return is_staged(last) or (folder == LOCK_FOLDER and last.startswith(PROBE))


def _names(folder: str, key: str) -> list[str]:
    """Sorted names of the direct entries of a folder; those of folders end with a slash.

    Names only: entries take several times the memory, and callers that need only the first object,
    such as the newest state of a branch, do not wait for the status of all others.
    """
    return sorted(
        f"{entry.name}/" if _is_folder(entry) else entry.name for entry in _entries(folder, key)
    )


def _holds_objects(folder: str) -> bool:
    return any(
        not _is_folder(entry) or _holds_objects(entry.path) for entry in _entries(folder, "/")
    )


def _entries(folder: str, key: str) -> Iterator[os.DirEntry[str]]:
    """Files and folders, without unfinished files and locks.

    Includes names that are not valid keys: those cannot be read, but a collector has to know of
    everything that exists.
    """
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if not key and entry.name == LOCK_FOLDER:
                    continue
                if not (is_staged(entry.name) and entry.is_file(follow_symlinks=False)):
                    yield entry
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise failure(error, "list", folder) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        if entry.is_file(follow_symlinks=False):
            return False
        if entry.is_symlink():
            raise outside(entry.path)
        return entry.is_dir(follow_symlinks=False)
    except OSError as error:
        raise failure(error, "inspect", entry.path) from error
