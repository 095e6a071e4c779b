"""Which generation is it? Entry points in the right order, and as few questions as possible."""

from __future__ import annotations

import pytest

from airflow_provider_icechunk.engine.format.detect import decide
from airflow_provider_icechunk.engine.format.envelope import MAGIC
from airflow_provider_icechunk.engine.format.fence import fence
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.opening import detect_all, detect_generation
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

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
        ({"repo": REPO, "refs/branch.main/ref.json": fence(REF, "2")}, Generation.V2),
        ({**V1_MAIN, "state.json": fence(b"{}", "1")}, Generation.V1),
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


def flipped(number: int) -> bytes:
    """The entry point with one bit of one byte turned."""
    return bytes(one ^ (number == place) for place, one in enumerate(REPO))


DAMAGED = [
    b"",
    b"anything",
    b"\0" * 100,
    MAGIC,
    MANIFEST,
    *(REPO[:size] for size in range(1, 39)),
    *(flipped(number) for number in (*range(len(MAGIC)), 37)),
]


@pytest.mark.parametrize("beside", [{}, V1_MAIN, ALPHA_MAIN, {"state.json": b"{}"}])
@pytest.mark.parametrize("repo", DAMAGED, ids=range(len(DAMAGED)))
def test_a_repo_object_that_is_not_understood_is_an_error_and_never_absent(
    repo: bytes, beside: dict[str, bytes]
) -> None:
    with pytest.raises(FormatError, match=r"memory://.*/repo: its? .*`overwritten/`"):
        detected({"repo": repo, **beside})


@pytest.mark.parametrize(
    ("objects", "lost"),
    [
        ({"refs/branch.main/ref.json": fence(REF, "2")}, "`repo`"),
        ({"refs/branch.main/ref.json": fence(REF, "2"), **ALPHA_MAIN}, "`repo`"),
        ({"state.json": fence(b"{}", "2")}, "`repo`"),
        ({"state.json": fence(b"{}", "1")}, "`refs/branch.main/ref.json`"),
    ],
)
def test_a_fence_without_the_generation_it_points_to_is_an_error(
    objects: dict[str, bytes], lost: str
) -> None:
    with pytest.raises(FormatError, match=f"entry point is missing.*{lost}"):
        detected(objects)


@pytest.mark.parametrize(
    "objects",
    [
        {},
        {"snapshots/VY76P925PRY57WFEK410": b""},
        {"refs/branch.other/ref.json": REF},
        {"refs/branch.main2/ZZZZZZZZ.json": REF},
        {"refs/tag.main/ref.json": REF},
    ],
)
def test_without_an_entry_point_there_is_no_repository(objects: dict[str, bytes]) -> None:
    assert detected(objects) is None


@pytest.mark.parametrize("folder", ["r/main/", "refs/branch.main/"])
def test_a_branch_that_strange_files_hide_is_an_error_and_never_absent(folder: str) -> None:
    strange = {f"{folder}00{number:06}.txt": b"" for number in range(1001)}
    with pytest.raises(FormatError, match="1000 files"):
        detected({**strange, f"{folder}ZZZZZZZZ.json": REF, "state.json": b"{}"})


STRANGE = [
    "ZZZZZZZZ",
    "ZZZZZZZZ.txt",
    "ZZZZZZZZ.json.bak",
    "notes.json",
    ".DS_Store",
    "a/ZZZZZZZZ.json",
]


@pytest.mark.parametrize("beside", [{}, {"state.json": b"{}"}])
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("folder", ["r/main/", "r/branch:main/", "refs/branch.main/"])
def test_a_main_of_misnamed_files_is_an_error_and_never_absent(
    folder: str, name: str, beside: dict[str, bytes]
) -> None:
    with pytest.raises(FormatError, match=f"memory://.*/{folder}{name}: not the name of a branch"):
        detected({folder + name: REF, **beside})
    assert detected({folder + name: REF, f"{folder}YZZZZZZZ.json": REF}) is not None


@pytest.mark.parametrize("name", STRANGE)
def test_any_file_may_lie_beside_the_reference_of_generation_1(name: str) -> None:
    storage = MemoryStorage()
    for key, data in (V1_MAIN | {f"refs/branch.main/{name}": REF}).items():
        storage.put(key, data, expect=Anything())
    assert [one.generation for one in detect_all(storage)] == [Generation.V1]


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
