"""From a connection to repositories."""

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.storage.location import StorageLocation
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    AlreadyExistsError,
    IcechunkError,
    InvalidInputError,
    Kind,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook


def test_a_repository_is_created_below_the_root_and_opened_again(folder: Path) -> None:
    hook = IcechunkHook()
    assert not hook.exists("weather/daily")
    hook.create("weather/daily")
    assert hook.exists("weather/daily")
    assert (folder / "weather" / "daily").is_dir()
    assert hook.get_conn("weather/daily").list_branches() == {"main"}
    with pytest.raises(AlreadyExistsError):
        hook.create("weather/daily")


@pytest.mark.usefixtures("folder")
def test_a_missing_repository_is_named_with_its_connection_and_the_remedy() -> None:
    with pytest.raises(NotFoundError) as caught:
        IcechunkHook().open("nowhere")
    assert caught.value.kind is Kind.REPOSITORY_NOT_FOUND
    for text in ("'nowhere'", "icechunk_default", "IcechunkCreateRepositoryOperator"):
        assert text in str(caught.value)


def test_a_path_outside_of_the_root_touches_nothing(folder: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        IcechunkHook().create("../sibling")
    assert caught.value.kind is Kind.OUTSIDE_ROOT
    assert not (folder.parent / "sibling").exists()


def test_testing_a_connection_says_what_is_at_its_root(folder: Path) -> None:
    before = set(folder.parent.rglob("*"))
    good, text = IcechunkHook().test_connection()
    assert good
    assert "is reachable and empty" in text
    assert set(folder.parent.rglob("*")) == before
    IcechunkHook().create("weather")
    good, text = IcechunkHook().test_connection()
    assert good
    assert "1 folders" in text


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.usefixtures("folder")
def test_testing_a_connection_to_a_repository_gives_its_generation_and_head(
    generation: int,
) -> None:
    head = IcechunkHook().create(".", spec_version=generation).lookup_branch("main")
    good, text = IcechunkHook().test_connection()
    assert good
    assert f"generation {generation}" in text
    assert f"main is at {head}" in text


def test_testing_a_wrong_connection_says_what_is_wrong(connect: Callable[..., str]) -> None:
    connect(host="bucket", extra={"colour": "blue"})
    good, text = IcechunkHook().test_connection()
    assert not good
    assert text.startswith("wrong connection: ")
    assert "colour" in text


def test_testing_a_connection_to_nowhere_fails_without_an_exception(
    connect: Callable[..., str], tmp_path: Path
) -> None:
    extra = {"endpoint_url": "http://127.0.0.1:9", "allow_http": True, "region": "us-east-1"}
    connect(host="bucket", login="key", password="marker-secret", extra=extra)
    good, text = IcechunkHook().test_connection()
    assert not good
    assert text.startswith("unreachable: ")
    assert "marker-secret" not in text
    connect(host=str(tmp_path / "missing"), extra={"storage": "file"})
    assert IcechunkHook().test_connection()[1].startswith("unreachable: no directory")


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (AccessDeniedError("x"), "no permission: "),
        (StorageError("x", kind=Kind.STORAGE_UNREACHABLE), "unreachable: "),
        (NotFoundError("x"), "not found: "),
        (UnsupportedError("x"), "format_unsupported: "),
    ],
)
@pytest.mark.usefixtures("folder")
def test_testing_a_connection_tells_the_causes_of_failure_apart(
    error: IcechunkError, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> bool:
        raise error

    monkeypatch.setattr(Repository, "exists", staticmethod(fail))
    good, text = IcechunkHook().test_connection()
    assert not good
    assert text.startswith(begins)


def test_the_place_for_workers_has_no_secrets(connect: Callable[..., str]) -> None:
    connect(
        host="bucket",
        login="marker-key",
        password="marker-secret",
        extra={"session_token": "marker-token", "prefix": "team", "region": "eu-west-1"},
    )
    place = IcechunkHook().place("weather")
    assert place == StorageLocation("s3://bucket/team/weather", region="eu-west-1")
    assert "marker" not in repr(place)
