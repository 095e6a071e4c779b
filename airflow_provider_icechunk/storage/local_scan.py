"""Listing a folder tree in the order of keys, without holding more than one path of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import itemgetter

from airflow_provider_icechunk.storage.base import Listed
from airflow_provider_icechunk.storage.keys import is_segment
from airflow_provider_icechunk.storage.local_files import failure, outside
from airflow_provider_icechunk.storage.locks import LOCK_FOLDER


def walk(folder: str, key: str, prefix: str) -> Iterator[Listed]:
    """Objects below `folder`, whose keys start with `key`, that also start with `prefix`.

    Keys are compared as whole strings, so a folder sorts as its name with the slash: `a-b` comes
    before what is in `a/`.
    """
    for found in _matching(folder, key, prefix):
        if found.key[-1] == "/":
            yield from walk(f"{folder}/{found.key[len(key) : -1]}", found.key, prefix)
        else:
            yield found


def folders_below(folder: str) -> list[str]:
    """Names of the folders directly in `folder` under which there is at least one object."""
    return sorted(
        entry.name
        for entry in _entries(folder, "")
        if _is_folder(entry) and _holds_objects(entry.path)
    )


def _matching(folder: str, key: str, prefix: str) -> list[Listed]:
    """What is directly in a folder, in order; folders as keys that end with a slash.

    Looked at while the folder is read: a list of its entries would take several times the memory.
    """
    every_one = key.startswith(prefix)
    found = []
    for entry in _entries(folder, key):
        here = key + entry.name
        if _is_folder(entry):
            here += "/"
            if here.startswith(prefix) or prefix.startswith(here):
                found.append(Listed(here, 0, 0))
        elif every_one or here.startswith(prefix):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise failure(error, "look at", entry.path) from error
            found.append(Listed(here, status.st_size, status.st_mtime_ns // 1000))
    found.sort(key=itemgetter(0))
    return found


def _holds_objects(folder: str) -> bool:
    return any(
        not _is_folder(entry) or _holds_objects(entry.path) for entry in _entries(folder, "/")
    )


def _entries(folder: str, key: str) -> Iterator[os.DirEntry[str]]:
    """Files and folders whose names can be part of a key, as the file system has them."""
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if is_segment(entry.name) and (key or entry.name != LOCK_FOLDER):
                    yield entry
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise failure(error, "list", folder) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False):
        return False
    if entry.is_symlink():
        raise outside(entry.path)
    return entry.is_dir(follow_symlinks=False)
