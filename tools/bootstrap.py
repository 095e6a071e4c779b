"""Set up the virtual environment the Makefile works in, once, from the pinned versions.

Uses only the standard library: it runs before anything is installed. A second run compares one
fingerprint and ends; everything that determines the content of the environment is part of the
fingerprint.
"""

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INPUTS = ("pyproject.toml", "constraints.txt", "tools/bootstrap.py")
NETWORK_HELP = (
    "If the network or a proxy is the cause, repair it and run the same command again: what was\n"
    "downloaded is kept. pip reads its settings from PIP_INDEX_URL, PIP_CERT and pip.conf,\n"
    "uv from UV_DEFAULT_INDEX and SSL_CERT_FILE. `make clean` starts from nothing."
)


class SetupError(Exception):
    """A step failed; the message says which one and what to do."""


def fingerprint(root: Path, version: str) -> str:
    """Return the fingerprint of an environment made from these files by this interpreter."""
    digest = hashlib.sha256(f"{version}\n{root}\n".encode())
    for name in INPUTS:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()


def pinned(constraints: str, name: str) -> str:
    """Return the requirement `name==version` that the constraints hold for a package."""
    for line in constraints.splitlines():
        requirement = line.split(";")[0].strip()
        if requirement.startswith(f"{name}=="):
            return requirement
    raise SetupError(f"constraints.txt has no version for {name}; run `make constraints`.")


def is_ready(venv: Path, expected: str) -> bool:
    """Tell whether the environment was finished from the same inputs."""
    stamp = venv / ".ready"
    return stamp.is_file() and stamp.read_text() == expected and (venv / "bin/python").exists()


def create(venv: Path) -> None:
    """Make an empty environment, replacing one left by another interpreter or a broken attempt."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"{sys.executable} has no module {' and no '.join(missing)}. On Debian and Ubuntu: "
            f"apt install python3.{sys.version_info.minor}-venv; or name another interpreter: "
            "make PYTHON=/path/to/python3.12"
        )
    step("creating the environment", [sys.executable, "-m", "venv", "--clear", str(venv)])


def install(venv: Path, root: Path) -> None:
    """Install the project and everything it is developed with, through uv where that works."""
    python = str(venv / "bin/python")
    constraints = root / "constraints.txt"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    project = ["--constraint", str(constraints), "--editable", f"{root}[dev]"]
    try:
        uv = pinned(constraints.read_text(), "uv")
        step("installing uv", [*pip, "install", "--quiet", uv])
        fast = [str(venv / "bin/uv"), "pip", "install", "--python", python]
        step(
            "installing the packages with uv (some minutes the first time; Spark is 400 MB)",
            [*fast, "--build-constraint", str(constraints), *project],
        )
    except SetupError as problem:
        print(f"{problem}\nGoing on with pip, which is slower.", file=sys.stderr, flush=True)
        step(
            "installing the packages with pip (ten minutes and more the first time)",
            [*pip, "install", *project],
            hint=NETWORK_HELP,
            # Pins the build tools of source packages; which of the two applies depends on pip's
            # version.
            extra={"PIP_CONSTRAINT": str(constraints), "PIP_BUILD_CONSTRAINT": str(constraints)},
        )


def step(
    title: str, command: list[str], hint: str = "", extra: Mapping[str, str] | None = None
) -> None:
    """Run one command under a visible title; its output stays visible too."""
    print(f"[setup] {title} ...", flush=True)
    begin = time.monotonic()
    try:
        code = subprocess.run(  # noqa: S603
            command, check=False, env={**os.environ, **(extra or {})}
        ).returncode
    except OSError as error:
        raise SetupError(f"[setup] {title}: {error}\n{hint}".rstrip()) from error
    if code != 0:
        text = f"[setup] {title}: failed with exit code {code}: {' '.join(command)}"
        raise SetupError(f"{text}\n{hint}".rstrip())
    print(f"[setup] done in {time.monotonic() - begin:.0f} s", flush=True)


def main() -> int:
    """Set up the environment named on the command line unless it is ready already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path)
    venv: Path = ROOT / parser.parse_args().venv
    expected = fingerprint(ROOT, sys.version)
    if is_ready(venv, expected):
        return 0
    try:
        create(venv)
        install(venv, ROOT)
        step("looking for Java", [str(venv / "bin/python"), str(ROOT / "tools/java_home.py")])
    except SetupError as problem:
        print(problem, file=sys.stderr)
        return 1
    (venv / ".ready").write_text(expected)
    return 0


if __name__ == "__main__":
    sys.exit(main())
