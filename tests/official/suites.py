"""Run the suites of official source distributions against this project, and count.

    python -m tests.official.suites              every suite against this project
    python -m tests.official.suites --official   against the official library itself

The distributions come from the package registry by pip, into a temporary folder; nothing of them
is kept. The suites run in environments of their own (`.venv-official-*`), with an S3 server on the
port that they know by heart. `counts.json` has how many passed: a count may only rise.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.official2 import find_python
from tools.seaweedfs import Account, seaweedfs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COUNTS = HERE / "counts.json"
ENVIRONMENT = ROOT / ".venv-official"
_ACCOUNT = Account(
    "modify",
    "modifydata",
    "testbucket",
    (("readonly", "basicuser"), ("test123", "test123")),
)
_PORT = 4200
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
    "virtualizarr==2.8.0",
    "xarray",
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

    @property
    def generation(self) -> str:
        """Of repositories that this release creates."""
        return self.icechunk.split(".")[0]


SUITES = {
    "icechunk-1.1.21": Suite("icechunk==1.1.21", "icechunk-python", ("tests",), "1.1.21"),
    "icechunk-2.3.0": Suite("icechunk==2.3.0", "icechunk-python", ("tests",), "2.3.0"),
    "virtualizarr-2.8.0": Suite(
        "virtualizarr==2.8.0",
        ".",
        (
            "virtualizarr/tests/test_writers/test_icechunk.py",
            "virtualizarr/tests/test_parsers/test_icechunk",
        ),
        "2.3.0",
    ),
}

_BACKEND = """
import re
from pathlib import Path


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


def download(suite: Suite, into: Path) -> Path:
    """The unpacked source distribution."""
    fake = into / "backend"
    fake.mkdir(parents=True, exist_ok=True)
    for name in ("maturin", "setuptools/build_meta", "setuptools/__init__"):
        (fake / f"{name}.py").parent.mkdir(exist_ok=True)
        (fake / f"{name}.py").write_text(_BACKEND)
    command = [
        *_pip(),
        "download",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary",
        ":all:",
    ]
    command += ["--ignore-requires-python", "-d", str(into), suite.distribution]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(fake)})
    archive = next(into.glob(f"{suite.distribution.replace('==', '-')}.tar.gz"))
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


def environment(icechunk: str) -> Path:
    """An interpreter with what the suites need and one official release; made once."""
    folder = ENVIRONMENT.with_name(f"{ENVIRONMENT.name}-{icechunk}")
    python, stamp = folder / "bin" / "python", folder / ".ready"
    if not stamp.exists():
        base = find_python()
        if base is None:
            raise RuntimeError("the official suites need Python 3.12 or newer, and there is none")
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        kept = [pin for pin in pins if not pin.startswith("icechunk==")]
        limits = folder / "constraints.txt"
        limits.write_text("\n".join(kept))
        install = [str(python), "-m", "pip", "install", "-q", "-c", str(limits)]
        subprocess.run([*install, *_REQUIREMENTS], check=True)
        subprocess.run([*install, "--no-deps", f"icechunk=={icechunk}"], check=True)
        stamp.touch()
    return python


def run(name: str, *, official: bool = False) -> dict[str, str]:
    """Each test of a suite and how it went: `passed`, or the first line of what was wrong."""
    suite = SUITES[name]
    python = environment(suite.icechunk if official else "2.3.0")
    with tempfile.TemporaryDirectory() as made, _server(Path(made) / "s3"):
        sources = download(suite, Path(made))
        report = Path(made) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "official_offline", "-o", "addopts="]
        command += ["--hypothesis-profile=short", "--timeout", "120", f"--junitxml={report}"]
        subprocess.run(
            [*command, *suite.tests],
            check=False,
            cwd=sources / suite.folder,
            env={**os.environ, **_variables(suite, sources, official=official)},
        )
        return dict(_outcomes(report))


def by_cause(outcomes: dict[str, str]) -> Counter[str]:
    """How often each cause of a failure occurred, ids and numbers left out."""
    causes = (re.sub(r"[0-9A-Z]{20}|\d+|'[^']*'", "…", one) for one in outcomes.values())
    return Counter(cause[:160] for cause in causes if cause != "passed")


def passed(outcomes: dict[str, str]) -> int:
    """How many tests passed."""
    return sum(one == "passed" for one in outcomes.values())


def _variables(suite: Suite, sources: Path, *, official: bool) -> dict[str, str]:
    paths = [str(HERE / "plugins")]
    if not official:
        paths = [str(HERE / "shim"), *paths, str(ROOT)]
    helpers = sources / "helpers"
    testing = sources / "python" / "icechunk" / "testing"
    if testing.is_dir():
        helpers.mkdir(exist_ok=True)
        (helpers / "testing").symlink_to(testing)
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "ICECHUNK_GENERATION": suite.generation,
        "ICECHUNK_VERSION": suite.icechunk,
        "ICECHUNK_TESTING": str(helpers),
    }


def _outcomes(report: Path) -> Iterator[tuple[str, str]]:
    for case in ET.parse(report).iter("testcase"):
        wrong = next((one for one in case if one.tag in {"failure", "error"}), None)
        name = f"{case.get('classname')}::{case.get('name')}"
        if wrong is not None:
            yield name, (wrong.get("message") or "failed").splitlines()[0]
        elif case.find("skipped") is None:
            yield name, "passed"


@contextmanager
def _server(folder: Path) -> Iterator[None]:
    with seaweedfs(folder, _ACCOUNT, port=_PORT):
        yield


def _pip() -> list[str]:
    return [str(ENVIRONMENT.with_name(f"{ENVIRONMENT.name}-2.3.0") / "bin" / "python"), "-m", "pip"]


def main() -> int:
    """Run the suites that are named, or all, and print the counts and causes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("suites", nargs="*", default=list(SUITES))
    parser.add_argument("--official", action="store_true", help="run the official library itself")
    chosen = parser.parse_args()
    for name in chosen.suites:
        outcomes = run(name, official=chosen.official)
        print(json.dumps({name: passed(outcomes), "of": len(outcomes)}))
        for cause, count in by_cause(outcomes).most_common():
            print(f"{count:5} {cause}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
