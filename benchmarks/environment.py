"""The environment of the official package's second major version, which needs Python 3.12."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "ICECHUNK2_PYTHON"
FOLDER = ".venv-icechunk2"
REQUIREMENTS = ("icechunk==2.3.0", "zarr==3.1.6", "numpy==2.4.6", "numcodecs==0.16.6")
"""All but the first as in `constraints.txt`: releases of Zarr differ more than the contenders."""
_CANDIDATES = ("python3.12", "python3.13", "python3.14")
_OLD_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 12))"


def second_python(root: Path) -> Path | str:
    """An interpreter that has the package, or a text that says why there is none.

    `ICECHUNK2_PYTHON` names one; otherwise an environment is made once below `root`.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return _with_package(Path(named))
    made = root / FOLDER / "bin" / "python"
    stamp = root / FOLDER / ".ready"
    if made.exists() and stamp.is_file() and stamp.read_text() == "\n".join(REQUIREMENTS):
        return made
    base = _new_enough()
    if base is None:
        return (
            f"no Python 3.12 or newer was found ({', '.join(_CANDIDATES)} on PATH); "
            f"install one or name an interpreter that has {REQUIREMENTS[0]} with {VARIABLE}"
        )
    return _make(base, root / FOLDER, stamp)


def _with_package(python: Path) -> Path | str:
    probe = [str(python), "-c", "import icechunk, zarr"]
    try:
        code = subprocess.run(probe, check=False, capture_output=True).returncode
    except OSError as error:
        return f"{VARIABLE} names {python}, which does not run: {error}"
    return python if code == 0 else f"{VARIABLE} names {python}, which has no icechunk and zarr"


def _new_enough() -> str | None:
    for name in (sys.executable, *_CANDIDATES):
        found = shutil.which(name)
        # A version manager's shim is on PATH for versions that are not installed, too.
        if found and not subprocess.run([found, "-c", _OLD_ENOUGH], capture_output=True).returncode:
            return found
    return None


def _make(base: str, folder: Path, stamp: Path) -> Path | str:
    print(f"[setup] making {folder.name} with {', '.join(REQUIREMENTS)} ...", flush=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for command in ([base, "-m", "venv", "--clear", str(folder)], [*pip, *REQUIREMENTS]):
        if subprocess.run(command, check=False).returncode:
            return f"`{' '.join(command)}` failed; repair it or name an interpreter by {VARIABLE}"
    stamp.write_text("\n".join(REQUIREMENTS))
    return python
