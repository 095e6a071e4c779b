"""The limits that hold when nobody sets any are there, and are what refuses a file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.bombs import BOMBS, sealed

from airflow_provider_icechunk.engine import budget
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.exceptions import FormatError, Kind

ZEROS = bytes(80 << 20)
"""More than any small file may take, and little enough to take it once without limits."""
KINDS = {
    "snapshot": FileType.SNAPSHOT,
    "manifest": FileType.MANIFEST,
    "repo": FileType.REPO_INFO,
    "log": FileType.TRANSACTION_LOG,
}
NAMES = [name for name in BOMBS if name.endswith("-zeros") and not name.startswith("draft/")]


@pytest.fixture(scope="module")
def bomb() -> Callable[[str], bytes]:
    made: dict[tuple[FileType, int], bytes] = {}

    def of(name: str) -> bytes:
        generation, _, rest = name.partition("/")
        kind = KINDS[rest.removesuffix("-zeros")]
        version = 2 if generation == "2" else 1
        if (kind, version) not in made:
            made[kind, version] = sealed(kind, ZEROS, version)
        return made[kind, version]

    return of


def kind_of_refusal(name: str, data: bytes) -> Kind:
    with pytest.raises(FormatError) as caught:
        BOMBS[name][1](data)
    return caught.value.kind


@pytest.mark.parametrize("name", NAMES)
def test_a_small_file_that_unpacks_to_much_is_refused_by_the_default_limits_alone(
    name: str, bomb: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(budget.FREE_BYTES, raising=False)
    monkeypatch.delenv(budget.RATIO, raising=False)
    assert kind_of_refusal(name, bomb(name)) is Kind.LIMIT_EXCEEDED
    # Without them something else refuses it, after its memory was taken.
    monkeypatch.setattr(budget, "DEFAULT", budget.Allowance(free_bytes=1 << 40))
    assert kind_of_refusal(name, bomb(name)) is not Kind.LIMIT_EXCEEDED
