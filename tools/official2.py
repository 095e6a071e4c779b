"""Print an interpreter that has the official `icechunk` 2, which needs Python 3.12 or newer.

Tests and benchmarks compare this package with both official major versions, and the second cannot
share an environment with the first. `ICECHUNK2_PYTHON` names an interpreter that has it; otherwise
an environment is made beside the main one, from any Python found that is new enough, with only the
standard library. If there is none, prints nothing and says why on the error stream: what needs it
is then left out.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "ICECHUNK2_PYTHON"
FOLDER = ROOT / ".venv-icechunk2"
SHARED = ("numcodecs", "numpy", "xarray", "zarr")
"""Packages of the same version on both sides, so that a comparison depends on nothing else."""
_NAMES = ("python3.11", "python3.12", "python3.13", "python3.14")
_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 12))"
_EXACTLY = "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{}')"


def main() -> int:
    """Print the interpreter, if there is one or one can be made."""
    named = os.environ.get(VARIABLE)
    if named:
        print(named)
        return 0
    python, stamp = FOLDER / "bin" / "python", FOLDER / ".ready"
    requirements = required((ROOT / "constraints.txt").read_text())
    wanted = "\n".join(requirements)
    if not (python.exists() and stamp.is_file() and stamp.read_text() == wanted):
        base = find_python()
        if base is None:
            _say(f"no Python 3.12 or newer found: leaving out official icechunk 2 (see {VARIABLE})")
            return 0
        if not make(base, requirements):
            _say("the environment for official icechunk 2 could not be made: leaving it out")
            return 0
        stamp.write_text(wanted)
    print(python)
    return 0


def find_python(version: str | None = None) -> str | None:
    """A working interpreter on PATH or in pyenv's folder: new enough, or of a given version.

    A version manager also has shims on PATH for versions that do not run.
    """
    fits = _NEW_ENOUGH if version is None else _EXACTLY.format(version)
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    names = (sys.executable, *_NAMES, *map(str, sorted(pyenv.glob("versions/3.*/bin/python"))))
    for name in names:
        found = shutil.which(name)
        if found and not _run([found, "-c", fits]):
            return found
    return None


def required(constraints: str) -> list[str]:
    """What goes into the environment, with the versions that are pinned for the main one."""
    pins = [line.split(";")[0].strip() for line in constraints.splitlines()]
    return ["icechunk==2.3.0", *(pin for pin in pins if pin.split("==")[0] in SHARED)]


def make(base: str, requirements: list[str]) -> bool:
    """Make the environment; whether it worked."""
    _say(f"making {FOLDER.name} with {', '.join(requirements)} ...")
    python = FOLDER / "bin" / "python"
    uv = shutil.which("uv", path=str(ROOT / ".venv" / "bin"))
    pip = [uv, "pip", "install", "-q", "--python"] if uv else []
    install = [*pip, str(python)] if pip else [str(python), "-m", "pip", "install", "-q"]
    return not (
        _run([base, "-m", "venv", "--clear", str(FOLDER)]) or _run([*install, *requirements])
    )


def _run(command: list[str]) -> int:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode  # noqa: S603
    except OSError:
        return 1


def _say(text: str) -> None:
    print(f"[setup] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
