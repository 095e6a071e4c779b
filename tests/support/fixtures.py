"""Repositories that the original software wrote, and what they must contain.

They are in a folder next to the project (`../shared/fixtures`) or where `ICECHUNK_FIXTURES` says;
tests that need them are skipped without it.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).parents[2].parent / "shared" / "fixtures"
FOLDER = Path(os.environ.get("ICECHUNK_FIXTURES", _BESIDE))

needs_fixtures = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no golden fixtures (set ICECHUNK_FIXTURES to their folder)"
)


def names(prefix: str = "") -> list[str]:
    """Names of the fixtures that begin with `prefix`, such as `g3-`."""
    return sorted(path.name.removesuffix(".tar.gz") for path in FOLDER.glob(f"{prefix}*.tar.gz"))


def expected(name: str) -> dict[str, Any]:
    """What the fixture must contain."""
    return json.loads((FOLDER / f"{name}.expected.json").read_bytes())


def unpack(name: str, into: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack a fixture below `into`: the root of its repository, and what it must contain."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
        top = archive.getnames()[0].split("/")[0]
    return into / top, expected(name)


def files(name: str, folder: str) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the files in one folder (`snapshots`, ...) of a fixture."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        for member in archive.getmembers():
            path = Path(member.name)
            if member.isfile() and path.parent.name == folder:
                stream = archive.extractfile(member)
                assert stream is not None
                yield path.name, stream.read()
