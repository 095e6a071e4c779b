"""Build the release files and check them: everything but the upload.

Built twice from the same source, to see that the bytes are the same. `SOURCE_DATE_EPOCH` comes from
`provider.yaml`, so that a file built years later is the same too.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TWINE = "twine==7.0.0"


class ReleaseError(Exception):
    """Something is not fit for a release; the text says what."""


def main() -> int:
    """Check the texts, build, compare, check the files and try them in an empty environment."""
    try:
        version = check_texts(ROOT)
        first, second = (build(Path(tempfile.mkdtemp())) for _ in range(2))
        compare(first, second)
        DIST.mkdir(exist_ok=True)
        for file in DIST.iterdir():
            file.unlink()
        for file in first:
            file.replace(DIST / file.name)
        files = [str(DIST / file.name) for file in first]
        run([str(uv()), "tool", "run", "--quiet", TWINE, "check", "--strict", *files])
        try_wheel(next(DIST.glob("*.whl")), version)
    except ReleaseError as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"dist/ has {version}, checked. The upload is yours: uv publish dist/*")
    return 0


def check_texts(root: Path) -> str:
    """The version, if every file that names it agrees."""
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    package = root / "airflow_provider_icechunk"
    provider = yaml.safe_load((package / "provider.yaml").read_text())
    if f'__version__ = "{version}"' not in (package / "__init__.py").read_text():
        raise ReleaseError(
            f"airflow_provider_icechunk/__init__.py has another version than {version}"
        )
    if provider["versions"][0] != version:
        raise ReleaseError(
            f"provider.yaml begins with {provider['versions'][0]}, not with {version}"
        )
    headings = (root / "CHANGELOG.md").read_text().split("\n## ")
    if not any(text.startswith((f"{version} ", f"[{version}]", "Unreleased")) for text in headings):
        raise ReleaseError(f"CHANGELOG.md has no section for {version}")
    return version


def build(target: Path) -> list[Path]:
    """Build the source distribution and the wheel into a folder."""
    provider = yaml.safe_load((ROOT / "airflow_provider_icechunk/provider.yaml").read_text())
    run(
        [str(uv()), "build", "--quiet", "--out-dir", str(target), str(ROOT)],
        SOURCE_DATE_EPOCH=str(provider["source-date-epoch"]),
    )
    return sorted(file for file in target.iterdir() if file.suffix in (".gz", ".whl"))


def compare(first: Sequence[Path], second: Sequence[Path]) -> None:
    """Refuse builds that differ."""
    sums = [
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        for files in (first, second)
    ]
    if len(sums[0]) != 2 or sums[0] != sums[1]:
        raise ReleaseError(f"two builds of the same source differ: {sums}")


def try_wheel(wheel: Path, version: str) -> None:
    """Install the wheel alone into an empty environment, and call it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "environment"
        run([str(uv()), "venv", "--quiet", "--python", sys.executable, str(home)])
        run(
            [
                str(uv()),
                "pip",
                "install",
                "--quiet",
                "--python",
                str(home / "bin/python"),
                str(wheel),
            ]
        )
        told = run([str(home / "bin/icechunk-airflow"), "init", f"{folder}/repository"])
        print(f"{wheel.name} {version}: {told.strip()}")


def uv() -> Path:
    """The installer of this environment."""
    return Path(sys.executable).with_name("uv")


def run(command: Sequence[str], **environment: str) -> str:
    """Run a command; its output, or an error with it."""
    done = subprocess.run(  # noqa: S603 - our own command
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment
    )
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
