"""Run the suites of official source distributions against this project, and count.

    python -m tests.official.suites [SUITE ...]   this project and the official library, compared
    python -m tests.official.suites --record      the same, and counts.json is written again

The distributions come from the package registry by pip, into a temporary folder; nothing of them
is kept. The suites run file by file in environments of their own (`.venv-official-*`), with an S3
server on the port that they know by heart. `counts.json` has how many tests passed: a count may
only rise. `causes.json` has, by suite, why the official library passes a test and this project does
not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.official2 import find_python
from tools.seaweedfs import Account, seaweedfs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COUNTS = HERE / "counts.json"
CAUSES = HERE / "causes.json"
ENVIRONMENT = ROOT / ".venv-official"
_ACCOUNT = Account(
    "modify",
    "modifydata",
    "testbucket",
    (("test123", "test123"), ("minio123", "minio123")),
    (("readonly", "basicuser"),),
)
_SECONDS_PER_TEST = 60
_SECONDS_PER_FILE = 1800
_REQUIREMENTS = (
    "arro3-core",
    "boto3",
    "boto3-stubs-lite[s3]",
    "dask",
    "distributed",
    "flatbuffers",
    "fsspec",
    "google-re2",
    "h5netcdf",
    "h5py",
    "hypothesis",
    "moto[s3,server]",
    "msgpack",
    "netCDF4",
    "numpy",
    "obstore",
    "pandas",
    "pooch",
    "pydantic",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pyyaml",
    "rich",
    "scipy",
    "termcolor",
    "urllib3",
    "zarr",
    "zstandard",
)


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one source distribution."""

    distribution: str
    folder: str
    tests: tuple[str, ...]
    icechunk: str
    """The release that runs it officially, and that this project stands for."""
    python: str
    more: tuple[str, ...]
    """Requirements of this release alone."""
    port: int = 4200
    """Of the S3 server that the tests know by heart."""

    @property
    def generation(self) -> str:
        """Of repositories that this release creates."""
        return self.icechunk.split(".")[0]


_NEWER = ("xarray", "virtualizarr==2.8.0")
SUITES = {
    "icechunk-1.1.21": Suite(
        "icechunk==1.1.21",
        "icechunk-python",
        ("tests",),
        "1.1.21",
        "3.11",
        # The official 1.1.21 passes an argument that Xarray has dropped since.
        ("xarray==2025.12.0",),
        9000,
    ),
    "icechunk-2.3.0": Suite(
        "icechunk==2.3.0", "icechunk-python", ("tests",), "2.3.0", "3.12", _NEWER
    ),
    "virtualizarr-2.8.0": Suite(
        "virtualizarr==2.8.0",
        ".",
        (
            "virtualizarr/tests/test_writers/test_icechunk.py",
            "virtualizarr/tests/test_parsers/test_icechunk",
        ),
        "2.3.0",
        "3.12",
        _NEWER,
    ),
}

_BACKEND = """
import re
import sys
from pathlib import Path

__legacy__ = sys.modules[__name__]


def get_requires_for_build_wheel(config=None):
    return []


def prepare_metadata_for_build_wheel(folder, config=None):
    info = Path("PKG-INFO").read_text()
    name, version = (re.search(rf"^{key}: (.*)$", info, re.M)[1] for key in ("Name", "Version"))
    made = Path(folder) / f"{name}-{version}.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(info)
    (made / "WHEEL").write_text("Wheel-Version: 1.0")
    return made.name
"""
"""Stands for the build tools of a distribution: pip asks for metadata before it hands one over, and
only Rust could answer otherwise."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the tests of a suite went, each `passed` or the first line of what was wrong."""

    official: Mapping[str, str]
    here: Mapping[str, str]

    @property
    def passed_officially(self) -> set[str]:
        """What the official library passes on this machine."""
        return {name for name, how in self.official.items() if how == "passed"}

    @property
    def passed_here(self) -> set[str]:
        """Of these, what this project passes."""
        return {name for name in self.passed_officially if self.here.get(name) == "passed"}

    @property
    def failed(self) -> dict[str, str]:
        """Of these, what it does not pass, and what was wrong."""
        missing = self.passed_officially - self.passed_here
        return {name: self.here.get(name, "was not run") for name in sorted(missing)}


def compare(name: str) -> Comparison:
    """A suite with the official library and with this project."""
    suite = SUITES[name]
    python = environment(suite)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with seaweedfs(folder / "s3", _ACCOUNT, port=suite.port):
            sources = download(suite, folder, python)
            both = [
                dict(_run(suite, sources, python, folder, official=official))
                for official in (True, False)
            ]
    return Comparison(*both)


def environment(suite: Suite) -> Path:
    """An interpreter with what the suites need and one official release; made once."""
    folder = ENVIRONMENT.with_name(f"{ENVIRONMENT.name}-{suite.icechunk}")
    python, stamp = folder / "bin" / "python", folder / ".ready"
    wanted = "\n".join((*_REQUIREMENTS, *suite.more))
    if not (stamp.exists() and stamp.read_text() == wanted):
        base = find_python(suite.python)
        if base is None:
            raise RuntimeError(f"{suite.distribution} needs Python {suite.python}: there is none")
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
        own = {re.split("[=<]", one)[0] for one in suite.more} | {"icechunk"}
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        limits = folder / "constraints.txt"
        limits.write_text("\n".join(pin for pin in pins if pin.split("==")[0] not in own))
        install = [str(python), "-m", "pip", "install", "-q", "-c", str(limits)]
        subprocess.run([*install, *_REQUIREMENTS, *suite.more], check=True)
        subprocess.run([*install, "--no-deps", f"icechunk=={suite.icechunk}"], check=True)
        stamp.write_text(wanted)
    return python


def download(suite: Suite, into: Path, python: Path) -> Path:
    """The unpacked source distribution."""
    fake = into / "backend"
    (fake / "setuptools").mkdir(parents=True, exist_ok=True)
    for name in ("maturin", "setuptools/build_meta", "setuptools/__init__"):
        (fake / f"{name}.py").write_text(_BACKEND)
    command = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", ":all:", "--ignore-requires-python", "-d", str(into)]
    subprocess.run(
        [*command, suite.distribution], check=True, env={**os.environ, "PYTHONPATH": str(fake)}
    )
    archive = next(into.glob(f"{suite.distribution.replace('==', '-')}.tar.gz"))
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


def _run(
    suite: Suite, sources: Path, python: Path, folder: Path, *, official: bool
) -> Iterator[tuple[str, str]]:
    """Each test and how it went, file by file: what ends one process spares the others."""
    home = sources / suite.folder
    variables = {**os.environ, **_variables(suite, sources, official=official)}
    for number, tests in enumerate(_files(home, suite.tests)):
        report = folder / f"report-{official}-{number}.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "official_offline", "-o", "addopts="]
        command += ["--hypothesis-profile=short", f"--timeout={_SECONDS_PER_TEST}"]
        command += [f"--junitxml={report}", tests]
        try:
            subprocess.run(command, check=False, cwd=home, env=variables, timeout=_SECONDS_PER_FILE)
        except subprocess.TimeoutExpired:
            continue
        if report.exists():
            yield from _outcomes(report)


def _files(home: Path, tests: tuple[str, ...]) -> list[str]:
    found = []
    for one in tests:
        path = home / one
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        found += [str(file.relative_to(home)) for file in files]
    return found


def _variables(suite: Suite, sources: Path, *, official: bool) -> dict[str, str]:
    paths = [str(HERE / "plugins")]
    if not official:
        paths = [str(HERE / "shim"), *paths, str(ROOT)]
    helpers = sources / "helpers"
    testing = sources / "python" / "icechunk" / "testing"
    if testing.is_dir() and not helpers.exists():
        helpers.mkdir()
        (helpers / "testing").symlink_to(testing)
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "ICECHUNK_GENERATION": suite.generation,
        "ICECHUNK_VERSION": suite.icechunk,
        "ICECHUNK_TESTING": str(helpers),
    }


def _outcomes(report: Path) -> Iterator[tuple[str, str]]:
    """By file, class and function; cases by number, since their ids show values of a library."""
    numbers: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        wrong = next((one for one in case if one.tag in {"failure", "error"}), None)
        owner = str(case.get("classname")).rpartition("tests.")[2]
        function, bracket, _ = str(case.get("name")).partition("[")
        name = f"{owner}::{function}"
        numbers[name] += 1
        name += f"[{numbers[name]}]" if bracket else ""
        if wrong is not None:
            yield name, (wrong.get("message") or "failed").splitlines()[0]
        elif case.find("skipped") is None:
            yield name, "passed"


def by_cause(suite: str, failed: Mapping[str, str]) -> dict[str, list[str]]:
    """Failed tests of a suite by cause; those without one under an empty text."""
    stored: dict[str, list[str]] = json.loads(CAUSES.read_text())[suite]
    known = {test: cause for cause, tests in stored.items() for test in tests}
    grouped: dict[str, list[str]] = {}
    for test in failed:
        grouped.setdefault(known.get(test.partition("[")[0], ""), []).append(test)
    return grouped


def main() -> int:
    """Run the suites that are named, or all, and print the counts and causes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("suites", nargs="*", default=list(SUITES))
    parser.add_argument("--record", action="store_true", help="write counts.json again")
    chosen = parser.parse_args()
    counts = json.loads(COUNTS.read_text())
    for name in chosen.suites:
        found = compare(name)
        counts[name] = {"official": len(found.passed_officially), "here": len(found.passed_here)}
        print(json.dumps({name: counts[name]}))
        for cause, tests in by_cause(name, found.failed).items():
            print(f"{len(tests):5} {cause or 'WITHOUT A CAUSE'}")
        unknown = by_cause(name, found.failed).get("", [])
        for test, count in Counter(one.split("[")[0] for one in unknown).items():
            wrong = next(text for one, text in found.failed.items() if one.startswith(test))
            print(f"      {test} ({count}): {wrong[:200]}")
    if chosen.record:
        COUNTS.write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
