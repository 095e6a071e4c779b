"""Resolve constraints.txt again: one set of versions for every supported Python.

Versions already pinned stay unless pyproject.toml excludes them; `--upgrade` lets all of them move.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = (
    "# Every version this project is developed and tested with, for Python 3.11 and later.\n"
    "# Made by `make constraints`; `make constraints ARGS=--upgrade` moves to newer versions.\n"
)
# What builds the packages that come as source, and the installer: pinned like everything else.
BUILDERS = "editables\nhatchling\nsetuptools\nuv\nwheel\n"
# zarr 3.2 needs Python 3.12: one version for all, so that 3.11 and 3.12 test the same thing.
LIMITS = "zarr==3.1.6\n"


def main() -> int:
    """Run the resolver and write the file only when it succeeded."""
    target = ROOT / "constraints.txt"
    scratch = ROOT / ".venv" / "pins.txt"
    limits = ROOT / ".venv" / "limits.txt"
    limits.write_text(LIMITS)
    scratch.write_text(target.read_text() if target.exists() else "")
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", str(ROOT / "pyproject.toml"),
        "-", "--all-extras", "--universal", "--python-version", "3.11", "--no-header",
        "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet",
        "--constraint", str(limits), "--output-file", str(scratch), *sys.argv[1:],
    ]  # fmt: skip
    code = subprocess.run(  # noqa: S603
        command, input=BUILDERS, text=True, check=False, stdout=subprocess.DEVNULL
    ).returncode
    if code == 0:
        target.write_text(HEADER + scratch.read_text())
        print(f"{target.name}: {len(scratch.read_text().splitlines())} pins")
    return code


if __name__ == "__main__":
    sys.exit(main())
