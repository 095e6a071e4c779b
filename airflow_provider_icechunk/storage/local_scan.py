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
    all_match = key.startswith(prefix)
    for name, entry in _entries(folder, key):
        here = key + name
        if name[-1] == "/":
            if here.startswith(prefix) or prefix.startswith(here):
                yield from walk(entry.path, here, prefix)
        elif all_match or here.startswith(prefix):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise failure(error, "look at", entry.path) from error
            yield Listed(here, status.st_size, status.st_mtime_ns // 1000)


def folders_below(folder: str) -> list[str]:
    """Names of the folders directly in `folder` under which there is at least one object."""
    return sorted(
        name[:-1]
        for name, entry in _entries(folder, "")
        if name.endswith("/") and next(walk(entry.path, "", ""), None) is not None
    )


def _entries(folder: str, key: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Files and folders by the name they sort by."""
    named = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                name = entry.name
                if not is_segment(name):
                    continue
                if not entry.is_file(follow_symlinks=False):
                    if key == "" and name == LOCK_FOLDER:
                        continue
                    name = _sort_name(entry)
                named.append((name, entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failure(error, "list", folder) from error
    named.sort(key=itemgetter(0))
    return named


def _sort_name(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        raise outside(entry.path)
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
