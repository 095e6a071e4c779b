"""Pin the versions of a row, and make its environment from them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .rows import ROOT, Matrix, Row

FOLDER = ROOT / ".matrix"
_PROJECT = ROOT / "pyproject.toml"


class MatrixError(Exception):
    """An environment cannot be created; the message says which one and why."""


def pin(row: Row, matrix: Matrix, today: str) -> None:
    """Resolve the versions of a row and write its file, only if that succeeds.

    :param today: the last day that counts for packages that `until` does not hold back.
    """
    scratch = FOLDER / f"{row.name}.in"
    result = FOLDER / f"{row.name}.txt"
    FOLDER.mkdir(exist_ok=True)
    scratch.write_text("\n".join([*row.fixed, *(matrix.tools if row.tools else ())]))
    result.unlink(missing_ok=True)
    command = [
        _uv(), "pip", "compile", str(_PROJECT), str(scratch), "--output-file", str(result),
        "--python-version", row.python, "--quiet", "--no-header", "--no-annotate",
        "--no-emit-index-url", "--no-emit-find-links",
    ]  # fmt: skip
    for extra in row.extras:
        command += ["--extra", extra]
    if row.until is not None:
        command += ["--exclude-newer", row.until]
        for name in matrix.undated:
            command += ["--exclude-newer-package", f"{name}={today}"]
    _run(command, f"no versions fit {row.title}")
    row.pins.parent.mkdir(exist_ok=True)
    row.pins.write_text(
        f"# {row.title}: made by `python -m tools.matrix pin {row.name}`.\n{result.read_text()}"
    )


def ensure(row: Row) -> Path:
    """The interpreter of a row's environment, which is recreated if its pins have changed."""
    if not row.pins.exists():
        raise MatrixError(f"{row.name} has no pins: python -m tools.matrix pin {row.name}")
    home = FOLDER / row.name
    python = home / "bin/python"
    wanted = hashlib.sha256(row.pins.read_bytes()).hexdigest()
    stamp = home / ".ready"
    install = [_uv(), "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
    if not (stamp.is_file() and stamp.read_text() == wanted and python.exists()):
        _run(
            [_uv(), "venv", "--quiet", "--clear", "--python", interpreter(row.python), str(home)],
            f"no environment for {row.title}",
        )
        _run([*install, "--requirement", str(row.pins)], f"cannot install {row.title}")
        stamp.write_text(wanted)
    # Every time, because entry points may have changed.
    _run([*install, "--editable", str(ROOT)], f"cannot install the project for {row.title}")
    return python


def remove(row: Row) -> None:
    """Remove a row's environment: one with Airflow and Spark takes about 2 GB."""
    shutil.rmtree(FOLDER / row.name, ignore_errors=True)


def interpreter(minor: str) -> str:
    """The command of a Python release: on PATH, or in pyenv's folder."""
    found = shutil.which(f"python{minor}")
    # There is a pyenv shim for every release, but it works only for the selected ones.
    if found is not None and "shims" not in Path(found).parts:
        return found
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted((home / "versions").glob(f"{minor}.*/bin/python"))
    if not kept:
        raise MatrixError(f"there is no Python {minor}: install one, or put it on PATH")
    return str(kept[-1])


def _uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def _run(command: Sequence[str], problem: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own command
        command, check=False, capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode != 0:
        raise MatrixError(f"{problem}: {' '.join((done.stderr or done.stdout).split())[-800:]}")
