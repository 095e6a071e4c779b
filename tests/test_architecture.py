"""The page about the architecture names files that exist, and walks them as the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "airflow_provider_icechunk"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = {
    "One commit": "commit",
    "One cold read": "read",
    "One collection": "collection",
    "One sensor": "sensor",
}


def steps(title: str) -> list[str]:
    """The files at the head of the numbered lines of a walk."""
    section = re.search(rf"^### {title}\n(.*?)(?=^#)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, f"there is no walk {title!r}"
    return re.findall(r"^\d+\. `(\S+\.py)`", section[1], re.MULTILINE)


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([a-z_0-9]+/[a-z_0-9/]*(?:\.py)?)`", PAGE))
    assert len(named) > 60
    places = (PACKAGE, ROOT)
    assert [one for one in sorted(named) if not any((at / one).exists() for at in places)] == []


def test_every_room_of_the_engine_is_on_the_page() -> None:
    rooms = {one.name for one in (PACKAGE / "engine").iterdir() if not one.name.startswith("_")}
    rooms = {one for one in rooms if one.endswith(".py") or "." not in one}
    assert {one for one in rooms if f"`engine/{one.removesuffix('/')}" not in PAGE} == set()


def entered(walk: str) -> list[str]:
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "walks.py"), walk],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (line,) = re.findall(r"^WALKED (.*)$", answer.stdout, re.MULTILINE)
    return list(json.loads(line))


def check(title: str, walk: str) -> None:
    wanted, found = steps(title), entered(walk)
    assert len(wanted) >= 7
    assert [one for one in wanted if one not in found] == [], "are not entered at all"
    rest = iter(found)
    assert [one for one in wanted if one not in rest] == [], f"come too early: {found}"


@pytest.mark.parametrize(("title", "walk"), WALKS.items(), ids=WALKS.values())
def test_a_walk_enters_the_files_in_the_order_of_the_page(title: str, walk: str) -> None:
    check(title, walk)


@pytest.mark.spark
@pytest.mark.long
def test_a_spark_write_enters_the_files_in_the_order_of_the_page() -> None:
    check("One Spark write", "spark")
