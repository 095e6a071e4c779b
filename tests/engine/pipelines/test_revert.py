"""Taking a commit back: what it changed is as before, what came later stays, or it is refused."""

from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk import api
from airflow_provider_icechunk.exceptions import ConflictError, InvalidInputError, NotFoundError


@pytest.fixture(params=[1, 2])
def repository(request: pytest.FixtureRequest) -> api.Repository:
    made = api.Repository.create(api.in_memory_storage(), spec_version=request.param)
    commit(made, lambda root: root.create_array("a", data=np.arange(8), chunks=(2,)))
    commit(made, lambda root: root.create_array("b", data=np.ones(4), chunks=(2,)))
    return made


def commit(repository: api.Repository, change: Any) -> str:
    session = repository.writable_session("main")
    change(zarr.open_group(session.store, mode="a"))
    return session.commit("change")


def values(repository: api.Repository, name: str) -> list[float]:
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    return np.asarray(root[name][:]).tolist()


def content(repository: api.Repository) -> dict[str, Any]:
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    return {
        name: (one.shape, dict(one.attrs), np.asarray(one[:]).tolist())
        for name, one in sorted(root.arrays())
    }


def put(name: str, where: slice, value: float) -> Any:
    def change(root: Any) -> None:
        root[name][where] = value

    return change


def test_chunks_are_as_before_and_later_ones_of_others_stay(repository: api.Repository) -> None:
    bad = commit(repository, put("a", slice(0, 4), 99))
    commit(repository, put("a", slice(4, 6), 7))
    new = api.revert(repository, bad)
    assert values(repository, "a") == [0, 1, 2, 3, 7, 7, 6, 7]
    info = repository.lookup_snapshot(new)
    assert info.metadata["reverts"] == bad
    assert info.message == f"revert {bad}: change"
    assert repository.verify().ok


def resize(root: Any) -> None:
    root["a"].resize((12,))
    root["a"][8:] = 5


def attributes(root: Any) -> None:
    root["a"].attrs["unit"] = "K"


def create(root: Any) -> None:
    root.create_array("c/d", data=np.zeros(3))


def delete(root: Any) -> None:
    del root["b"]


def everything(root: Any) -> None:
    for change in (resize, attributes, create, delete):
        change(root)


@pytest.mark.parametrize("change", [resize, attributes, create, delete, everything])
def test_every_kind_of_change_is_taken_back(repository: api.Repository, change: Any) -> None:
    before = content(repository)
    api.revert(repository, commit(repository, change))
    assert content(repository) == before
    groups = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert change is not create or "d" not in list(groups.get("c", {}))
    assert repository.verify().ok


def test_a_group_in_which_others_put_something_since_stays(repository: api.Repository) -> None:
    bad = commit(repository, create)
    commit(repository, lambda root: root.create_array("c/theirs", data=np.zeros(2)))
    api.revert(repository, bad)
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert list(root["c"]) == ["theirs"]


def test_a_commit_that_was_taken_back_can_be_brought_back(repository: api.Repository) -> None:
    change = commit(repository, everything)
    after = content(repository)
    api.revert(repository, api.revert(repository, change))
    assert content(repository) == after


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (put("a", slice(0, 4), 9), put("a", slice(2, 4), 8), "1 chunks of /a, for example"),
        (attributes, lambda root: root["a"].attrs.update(unit="C"), "the definition of /a"),
        (create, lambda root: root["c/d"].attrs.update(x=1), "/c/d was changed"),
        (delete, lambda root: root.create_array("b", data=np.zeros(2)), "/b was created again"),
        (resize, put("a", slice(0, 2), 1), "whose shape would change"),
        (put("b", slice(0, 2), 9), delete, "/b was deleted"),
    ],
)
def test_what_later_commits_changed_as_well_is_refused_by_name(
    repository: api.Repository, first: Any, second: Any, text: str
) -> None:
    bad = commit(repository, first)
    head = commit(repository, second)
    with pytest.raises(ConflictError, match=text):
        api.revert(repository, bad)
    assert repository.lookup_branch("main") == head


def test_what_is_not_in_the_history_cannot_be_taken_back(repository: api.Repository) -> None:
    repository.create_branch("other", repository.lookup_branch("main"))
    session = repository.writable_session("other")
    zarr.open_group(session.store, mode="a")["a"][:2] = 1
    elsewhere = session.commit("elsewhere")
    with pytest.raises(NotFoundError, match="not in the history"):
        api.revert(repository, elsewhere)
    first = list(repository.ancestry(branch="main"))[-1]
    with pytest.raises(InvalidInputError, match="first snapshot"):
        api.revert(repository, first.id)
