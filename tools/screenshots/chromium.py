"""Find the Chromium and the driver that drawing and testing the page need."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys

DRIVER = "playwright==1.65.2"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class MissingError(Exception):
    """Something is not installed; the text says what to do."""


def find_chromium() -> str:
    """The path of a Chromium, with the driver installed beside it."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise MissingError(
            "There is no Chromium. Install one (Debian: apt-get install chromium) and run again."
        )
    if importlib.util.find_spec("playwright") is None:
        print(f"  installing {DRIVER}", flush=True)
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "pip", "install", "-q", DRIVER], check=False
        )
        if done.returncode:
            raise MissingError(f"{DRIVER} cannot be installed; see above.")
    return found


def main() -> int:
    """Make sure that both are there, installing what may be installed."""
    if next(filter(None, map(shutil.which, _NAMES)), None) is None and shutil.which("apt-get"):
        print("  installing chromium", flush=True)
        subprocess.run(["apt-get", "install", "-y", "-q", "chromium"], check=False)  # noqa: S607
    try:
        print(f"  Chromium: {find_chromium()}")
    except MissingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
