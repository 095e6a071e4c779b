"""Listing a folder tree in the order of keys, without holding more than one path of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from airflow_provider_icechunk.storage.base import Listed
from airflow_provider_icechunk.storage.keys import is_staged
from airflow_provider_icechunk.storage.local_files import failure, outside
from airflow_provider_icechunk.storage.locks import LOCK_FOLDER, PROBE


def walk(folder: str, key: str, prefix: str) -> Iterator[Listed]:
    """Objects below `folder`, whose keys start with `key`, that also start with `prefix`.

    Keys are compared as whole strings, so a folder sorts as its name with the slash: `a-b` comes
    before what is in `a/`.
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
                raise failure(error, "look at", path) from error
            yield Listed(here, status.st_size, status.st_mtime_ns // 1000)


def folders_below(folder: str) -> list[str]:
    """Names of the folders directly in `folder` under which there is at least one object."""
    return sorted(
        entry.name
        for entry in _entries(folder, "")
        if _is_folder(entry) and _holds_objects(entry.path)
    )


def unfinished_below(folder: str, key: str = "") -> Iterator[Listed]:
    """Files that killed writers left anywhere below a folder; `key` is its name with a slash.

    Folders that may not be read are left out, since what is not found harms nobody.
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
    """Whether a file below the root is one that only a killed writer leaves."""
    folder, _, last = name.rpartition("/")
    return is_staged(last) or (folder == LOCK_FOLDER and last.startswith(PROBE))


def _names(folder: str, key: str) -> list[str]:
    """Names of what is directly in a folder, in order; those of folders end with a slash.

    Names only: entries take several times the memory, and whoever asks for the first object, as
    the newest state of a branch is asked for, does not wait for a look at all the others.
    """
    return sorted(
        f"{entry.name}/" if _is_folder(entry) else entry.name for entry in _entries(folder, key)
    )


def _holds_objects(folder: str) -> bool:
    return any(
        not _is_folder(entry) or _holds_objects(entry.path) for entry in _entries(folder, "/")
    )


def _entries(folder: str, key: str) -> Iterator[os.DirEntry[str]]:
    """Files and folders as the file system has them, but for unfinished files and locks.

    Also those whose names cannot be part of a key: they cannot be read, and whoever must know all
    that is there, as a collector must, has to learn of them.
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
        raise failure(error, "look at", entry.path) from error
