"""Airflow finds the provider: its entry in the list, hook, decorators, links, plugin, commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

DECORATORS = ("icechunk", "icechunk_spark")


def command(*words: str) -> str:
    """The output of an Airflow command."""
    airflow = Path(sys.executable).with_name("airflow")
    done = subprocess.run(  # noqa: S603 - the command of this environment
        [str(airflow), *words], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"airflow {' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout


def table(*words: str) -> list[dict[str, str]]:
    """The rows that a listing command prints."""
    text = command(*words, "--output", "json")
    rows: list[dict[str, str]] = json.loads(text[text.index("[") :])
    return rows


def has_commands() -> bool:
    """Whether providers can add commands, as they can since Airflow 3.2."""
    from airflow import __version__

    return tuple(map(int, __version__.split(".")[:2])) >= (3, 2)


def main() -> int:
    """Check each kind of thing that Airflow takes from a provider."""
    from airflow.providers_manager import ProvidersManager

    from airflow_provider_icechunk import __version__

    listed = {row["package_name"]: row["version"] for row in table("providers", "list")}
    assert listed.get("airflow-provider-icechunk") == __version__, listed
    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    hook = manager.hooks["icechunk"]
    assert hook is not None
    assert hook.hook_class_name.endswith("IcechunkHook")
    # Not all of them: decorators of other providers may need what is not installed.
    assert all(map(callable, (manager.taskflow_decorators[name] for name in DECORATORS)))
    assert any("IcechunkSnapshotLink" in name for name in manager.extra_links_class_names)
    assert "icechunk" in manager.asset_uri_handlers
    assert any("IcechunkTagNotifier" in str(entry) for entry in manager.notification)
    plugins = {row["name"] for row in table("plugins")}
    assert "icechunk" in plugins, plugins
    if has_commands():
        assert "verify" in command("icechunk", "--help")
    print(f"airflow-provider-icechunk {__version__} and its parts are there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
