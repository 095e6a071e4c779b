"""What the pages claim: every test they name exists, and every class of the provider is told."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
FILE = re.compile(r"`(tests/[\w/]+(?:\.py)?)`")
TEST = re.compile(r"`(test_\w+)`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """The tests a text names, each with the file that was named last before it."""
    found, file = [], ""
    for match in re.finditer(f"{FILE.pattern}|{TEST.pattern}", text):
        if match[1]:
            file = match[1]
        else:
            found.append((file, match[2]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for name in FILE.findall(text):
        assert (ROOT / name).exists(), name
    for file, name in named_tests(text):
        assert (ROOT / file).is_file(), f"{name} is named without its file"
        assert re.search(rf"\bdef {name}\(", (ROOT / file).read_text()), f"{file} has no {name}"


def claims(page: str) -> list[str]:
    """The items of the lists of a page, and of nothing else."""
    text = (ROOT / "docs" / page).read_text()
    return [
        item.strip() for item in re.findall(r"^- (.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "most"), [("guarantees.md", 6), ("security.md", 6)])
def test_claims_name_the_test_that_proves_them(page: str, most: int) -> None:
    """All but those of sections that name their file once, and of what is not defended."""
    bare = [claim for claim in claims(page) if not FILE.search(claim)]
    assert len(bare) <= most, bare
    assert len(claims(page)) >= 15


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    listed = re.search(r"\{toctree\}.*?\n\n(.*?)```", index, re.DOTALL)
    assert listed is not None
    assert set(listed[1].split()) == {page.stem for page in PAGES} - {"index"}


def test_every_class_of_the_provider_is_on_a_page() -> None:
    from support.provider_classes import listed

    text = "".join(page.read_text() for page in PAGES)
    for one in listed("hooks", "operators", "sensors", "triggers"):
        if one.__name__ not in ("IcechunkTagTrigger", "IcechunkNodeTrigger"):
            assert f"`{one.__name__}`" in text or f"{one.__name__}(" in text, one.__name__


def test_the_migration_page_tells_every_official_name_that_is_missing() -> None:
    import icechunk

    import airflow_provider_icechunk.api as ours

    text = (ROOT / "docs" / "migration.md").read_text()
    missing = [name for name in icechunk.__all__ if not hasattr(ours, name)]
    for kind in ("Repository", "Session", "IcechunkStore"):
        mine, theirs = getattr(ours, kind), getattr(icechunk, kind)
        public = [name for name in dir(theirs) if not name.startswith("_")]
        missing += [f"{kind}.{name}" for name in public if not hasattr(mine, name)]
    assert [name for name in missing if f"`{name}`" not in text] == []
