"""Which generation is it? Entry points in the right order, and as few questions as possible."""

from __future__ import annotations

import pytest

from airflow_provider_icechunk.exceptions import UnsupportedError
from airflow_provider_icechunk.format.envelope import MAGIC
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.detect import decide
from airflow_provider_icechunk.repository.detection import detect_generation
from airflow_provider_icechunk.storage.base import Anything
from airflow_provider_icechunk.storage.memory import MemoryStorage

REPO = MAGIC + b"ic-2.0.0".ljust(24) + bytes([2, 6, 1]) + b"payload"
MANIFEST = MAGIC + b"ic-2.0.0".ljust(24) + bytes([2, 2, 1]) + b"payload"
REF = b'{"snapshot":"VY76P925PRY57WFEK410"}'

V1_MAIN = {"refs/branch.main/ref.json": REF}
ALPHA_MAIN = {"refs/branch.main/ZZZZZZZZ.json": REF, "refs/branch.main/ZZZZZZZY.json": REF}
COLON_MAIN = {"refs/branch:main/ZZZZZZZZ.json": REF}


def detected(objects: dict[str, bytes]) -> Generation | None:
    storage = MemoryStorage()
    for key, data in objects.items():
        storage.put(key, data, expect=Anything())
    return detect_generation(storage)


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ({"repo": REPO}, Generation.V2),
        ({"repo": REPO, **V1_MAIN}, Generation.V2),
        (V1_MAIN, Generation.V1),
        ({**V1_MAIN, **ALPHA_MAIN}, Generation.V1),
        (ALPHA_MAIN, Generation.ALPHA),
        (COLON_MAIN, Generation.ALPHA),
        ({"r/main/ZZZZZZZZ.json": REF}, Generation.ALPHA1),
        ({"r/branch:main/ZZZZZZZZZZZZY.json": REF}, Generation.ALPHA1),
        ({"state.json": b"{}"}, Generation.DRAFT),
        ({**ALPHA_MAIN, "state.json": b"{}"}, Generation.ALPHA),
    ],
)
def test_the_newest_entry_point_decides(objects: dict[str, bytes], expected: Generation) -> None:
    assert detected(objects) is expected


@pytest.mark.parametrize("repo", [b"", b"anything", MAGIC, REPO[:38], MANIFEST])
def test_a_file_called_repo_is_not_enough(repo: bytes) -> None:
    assert detected({"repo": repo}) is None
    assert detected({"repo": repo, **V1_MAIN}) is Generation.V1


@pytest.mark.parametrize(
    "objects",
    [
        {},
        {"snapshots/VY76P925PRY57WFEK410": b""},
        {"refs/branch.other/ref.json": REF},
        {"refs/branch.main2/ZZZZZZZZ.json": REF},
        {"refs/branch.main/notes.json": REF, "refs/branch.main/ZZZZZZZZ.txt": REF},
        {"refs/tag.main/ref.json": REF},
    ],
)
def test_without_an_entry_point_there_is_no_repository(objects: dict[str, bytes]) -> None:
    assert detected(objects) is None


@pytest.mark.parametrize("folder", ["r/main/", "refs/branch:main/"])
def test_development_versions_are_named_as_what_they_are(folder: str) -> None:
    with pytest.raises(UnsupportedError, match="September 2024"):
        detected({f"{folder}ZZZZZZZZZZZZY.json": REF})


@pytest.mark.parametrize(
    ("objects", "most"),
    [({"repo": REPO}, 1), (V1_MAIN, 2), (ALPHA_MAIN, 3), (COLON_MAIN, 4)],
)
def test_few_questions_are_enough(objects: dict[str, bytes], most: int) -> None:
    asked: list[str] = []

    def opening(key: str) -> bytes | None:
        asked.append(key)
        return objects.get(key)

    def names(folder: str) -> list[str]:
        asked.append(folder)
        return sorted(key.removeprefix(folder) for key in objects if key.startswith(folder))

    assert decide(opening, names) is not None
    assert len(asked) <= most
