"""A zip for executors: this package and, if wanted, those of its requirements that work from a zip.

The bytes depend only on the versions: entries are sorted and have no times.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import airflow_provider_icechunk

_NAME = "airflow-provider-icechunk"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SOURCES = (".py", ".pyi", ".pyc", ".typed")
_LEFT_OUT = ("__pycache__/", "../")


@dataclass(frozen=True, slots=True)
class Shipped:
    """A written zip, and what else must be installed."""

    path: Path
    size: int
    contained: tuple[str, ...]
    """`name==version` of what is inside."""
    needed: tuple[str, ...]
    """`name==version` of packages with machine code or data files, or that were not included."""


def ship(output: Path, *, with_needs: bool = False) -> Shipped:
    """Write the zip; `with_needs` adds the needed packages that consist of Python sources."""
    entries = dict(package_sources())
    contained = [f"{_NAME}=={airflow_provider_icechunk.__version__}"]
    needed = []
    for found in _needs(_NAME):
        label = f"{found.metadata['Name']}=={found.version}"
        files = [str(file) for file in found.files or ()]
        if not with_needs or not files or not all(map(_works_in_a_zip, files)):
            needed.append(label)
            continue
        contained.append(label)
        for name in files:
            if not any(part in name for part in _LEFT_OUT):
                entries[name] = Path(str(found.locate_file(name))).read_bytes()
    write_zip(output, entries)
    return Shipped(output, output.stat().st_size, tuple(contained), tuple(needed))


def package_sources() -> dict[str, bytes]:
    """The files of this package by their path in a zip."""
    root = Path(airflow_provider_icechunk.__file__).parent
    return {
        f"{root.name}/{file.relative_to(root).as_posix()}": file.read_bytes()
        for file in sorted(root.rglob("*.py"))
    }


def write_zip(target: Path, entries: dict[str, bytes]) -> None:
    """Write files to a zip, in order and without times."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, _EPOCH)
            archive.writestr(entry, entries[name], compress_type=zipfile.ZIP_DEFLATED)


def _works_in_a_zip(name: str) -> bool:
    """Whether Python finds a file in a zip: sources and metadata, no machine code and no data."""
    return name.endswith(_SOURCES) or ".dist-info/" in name or name.startswith("../")


def _needs(name: str) -> list[Distribution]:
    """The installed distributions that one needs, directly and indirectly, by name."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        try:
            current = distribution(waiting.pop())
        except PackageNotFoundError:
            continue
        for requirement in current.requires or ():
            wanted, _, condition = requirement.partition(";")
            if "extra ==" in condition:
                continue
            other = re.split(r"[^A-Za-z0-9._-]", wanted.strip())[0]
            key = re.sub(r"[-_.]+", "-", other).lower()
            if key in found or key == _NAME:
                continue
            try:
                found[key] = distribution(other)
            except PackageNotFoundError:
                # For another Python or system, as its condition would show.
                continue
            waiting.append(other)
    return [found[key] for key in sorted(found)]
