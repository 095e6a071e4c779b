"""What a connection may say, and that nothing else gets through."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.sdk import Connection
from hypothesis import given
from hypothesis import strategies as st
from support.between import Between, standing_before
from support.moto_server import BUCKET
from support.seaweedfs import ACCESS_KEY, SECRET_KEY, SHARED_BUCKET, SeaweedFS

from airflow_provider_icechunk.api import Repository, s3_storage
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind
from airflow_provider_icechunk.hooks.connection import IcechunkConnection, parse_connection
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

SECRET = "marker-secret-7f3a"


def connection(extra: object = None, **fields: object) -> Connection:
    given = {"conn_id": "c", "conn_type": "icechunk", "host": "bucket", **fields}
    return Connection(**given, extra=None if extra is None else json.dumps(extra))


def refusal(extra: object = None, **fields: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        parse_connection(connection(extra, **fields))
    assert caught.value.kind is Kind.INVALID_CONFIG
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_a_bucket_alone_uses_the_credentials_of_the_environment() -> None:
    settings = parse_connection(connection())
    assert (settings.storage, settings.host, settings.login) == ("s3", "bucket", None)
    assert settings.key_prefix("a/b") == "a/b"


def test_every_extra_arrives() -> None:
    extra = {
        "storage": "s3", "prefix": "team/data", "region": "eu-west-1", "allow_http": True,
        "endpoint_url": "http://store:9000", "force_path_style": "true", "session_token": SECRET,
    }  # fmt: skip
    settings = parse_connection(connection(extra, login="key", password=SECRET))
    assert settings.key_prefix("weather") == "team/data/weather"
    assert settings.force_path_style
    assert settings.allow_http
    assert settings.session_token is not None
    assert settings.session_token.get_secret_value() == SECRET


def test_secrets_show_in_no_print() -> None:
    settings = parse_connection(connection({"session_token": SECRET}, login="k", password=SECRET))
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()


def test_empty_fields_of_the_form_count_as_absent() -> None:
    extra = {"region": "", "endpoint_url": None, "aws_conn_id": ""}
    assert parse_connection(connection(extra, login="", password="")).region is None


def test_an_unknown_extra_is_named_together_with_the_known_ones() -> None:
    text = refusal({"py-io-impl": "os.system", "region": "x"})
    assert "py-io-impl" in text
    assert "endpoint_url" in text
    assert "os.system" not in text


@given(st.dictionaries(st.text(min_size=1, max_size=30), st.text(max_size=30), min_size=1))
def test_no_made_up_extra_gets_through(extra: dict[str, str]) -> None:
    made_up = {f"x-{name}": value for name, value in extra.items()}
    with pytest.raises(InvalidInputError):
        parse_connection(connection(made_up))


@pytest.mark.parametrize(
    ("extra", "fields", "says"),
    [
        ({"storage": "ftp"}, {}, "storage"),
        ({"allow_http": "perhaps"}, {}, "allow_http"),
        ({"storage": "file"}, {"host": "relative/path"}, "absolute"),
        ({"storage": "file"}, {"host": "/data/../etc"}, "absolute"),
        ({"storage": "file"}, {"host": "/data", "password": SECRET}, "password"),
        ({"storage": "file", "region": "x"}, {"host": "/data"}, "region"),
        ({}, {"host": "bucket/prefix"}, "prefix"),
        ({}, {"host": "/data/repositories"}, "'storage' to 'file'"),
        ({"storage": "s3"}, {"host": "/data/repositories"}, "'storage' to 'file'"),
        ({}, {"host": "local[2]"}, "is not a valid bucket name"),
        ({}, {"host": "bucket "}, "is not a valid bucket name"),
        ({}, {"host": "s3:bucket"}, "is not a valid bucket name"),
        ({}, {"host": "b" * 256}, "is not a valid bucket name"),
        ({}, {"host": ""}, "host is missing"),
        ({}, {"login": "key"}, "or neither"),
        ({"session_token": SECRET}, {}, "session_token"),
        ({"anonymous": True}, {"login": "k", "password": SECRET}, "set only one"),
        ({"anonymous": True, "aws_conn_id": "aws_default"}, {}, "set only one"),
        ({"endpoint_url": f"https://user:{SECRET}@store"}, {}, "endpoint_url"),
        ({"endpoint_url": "file:///etc/passwd"}, {}, "endpoint_url"),
        ({"prefix": "../other"}, {}, "prefix"),
        ({}, {"port": 9000}, "port"),
        ([], {}, "not a JSON object"),
    ],
)
def test_what_cannot_work_is_refused_in_words(
    extra: object, fields: dict[str, object], says: str
) -> None:
    assert says in refusal(extra, **fields)


@pytest.mark.parametrize("kind", ["spark", "aws", "generic", "", None])
def test_a_connection_of_another_type_is_not_taken_for_one_of_ours(kind: str | None) -> None:
    text = refusal(conn_type=kind, host="bucket", password=SECRET)
    assert "not 'icechunk'" in text
    assert repr(kind or "") in text


@pytest.mark.parametrize("name", ["b", "my-bucket.2026", "Old_Bucket", "123", "b" * 255])
def test_a_bucket_may_be_called_what_any_store_allows(name: str) -> None:
    assert parse_connection(connection(host=name)).host == name


def test_the_connection_of_spark_reaches_no_storage(connect: Callable[..., str]) -> None:
    connect("spark_default", conn_type="spark", host="local[2]")
    hook = IcechunkHook("spark_default")
    with pytest.raises(InvalidInputError, match=r"'spark_default'.*'spark'.*icechunk_conn_id"):
        hook.open("weather")
    ok, told = hook.test_connection()
    assert not ok
    assert told.startswith("wrong connection")


BAD_PATHS = ["../a", "a/../b", "/etc", "a//b", "./a", "a\\b", "s3://b/c", "a\x00b", "..", "//", "/"]


@pytest.mark.parametrize("path", BAD_PATHS)
@pytest.mark.parametrize("storage", ["s3", "file"])
def test_no_repository_path_leads_out_of_the_root(path: str, storage: str) -> None:
    settings = IcechunkConnection(storage=storage, host="/data" if storage == "file" else "bucket")
    with pytest.raises(InvalidInputError) as caught:
        settings.folder(path) if storage == "file" else settings.key_prefix(path)
    assert caught.value.kind is Kind.OUTSIDE_ROOT


def test_a_link_below_the_root_does_not_lead_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    settings = IcechunkConnection(storage="file", host=str(tmp_path / "root"))
    with pytest.raises(InvalidInputError) as caught:
        settings.folder("link/repository")
    assert caught.value.kind is Kind.OUTSIDE_ROOT


def test_the_root_itself_can_be_the_repository() -> None:
    settings = IcechunkConnection(storage="file", host="/data", prefix="here")
    assert settings.folder(".") == "/data/here"
    assert settings.folder("a/b") == "/data/here/a/b"


@pytest.fixture
def between(moto_endpoint: str, connect: Callable[..., str]) -> Iterator[Between]:
    """A server that `icechunk_default` points to, in front of moto."""
    with standing_before(moto_endpoint) as server:
        extra = {
            "endpoint_url": server.address, "allow_http": True, "force_path_style": True,
            "region": "us-east-1", "prefix": f"checked-{server.server_port}",
        }  # fmt: skip
        connect(host=BUCKET, login="key", password=SECRET, extra=extra)
        connect("elsewhere", host="nowhere", login="key", password=SECRET, extra=extra)
        yield server


def made_in(server: Between) -> Repository:
    """A repository at the root of the connection, made behind the server's back."""
    storage = s3_storage(
        bucket=BUCKET, prefix=f"checked-{server.server_port}", endpoint_url=server.behind,
        allow_http=True, force_path_style=True, region="us-east-1", access_key_id="key",
        secret_access_key=SECRET,
    )  # fmt: skip
    return Repository.create(storage)


def checked(conn_id: str = "icechunk_default") -> tuple[bool, str]:
    good, text = IcechunkHook(conn_id).test_connection()
    assert SECRET not in text
    return good, text


def test_a_connection_test_tells_what_is_in_a_bucket_and_only_reads(between: Between) -> None:
    root = f"s3://{BUCKET}/checked-{between.server_port}"
    assert checked() == (True, f"{root} is reachable and empty")
    repository = made_in(between)
    good, text = checked()
    assert good
    assert f"generation 1; main is at {repository.lookup_branch('main')}" in text
    assert "conditional reads" in text
    good, text = checked("elsewhere")
    assert not good
    assert text.startswith("not found: ")
    between.denies = True
    good, text = checked()
    assert not good
    assert text.startswith("no permission: ")
    assert set(between.methods) <= {"GET", "HEAD"}
    # Of a bucket with a repository, its rules are asked for as well.
    assert len(between.methods) <= 32


def test_a_store_that_ignores_conditions_on_reads_is_told_apart(between: Between) -> None:
    made_in(between)
    between.drops_conditions = True
    good, text = checked()
    assert not good
    assert text.startswith("conditions not honoured: ")
    assert "generation 1" in text
    assert set(between.methods) <= {"GET", "HEAD"}


@pytest.mark.seaweedfs
def test_a_real_store_honours_conditions_on_reads(
    seaweedfs: SeaweedFS, connect: Callable[..., str]
) -> None:
    prefix = seaweedfs.fresh_prefix()
    extra = {
        "endpoint_url": seaweedfs.endpoint_url, "allow_http": True, "force_path_style": True,
        "region": "us-east-1", "prefix": prefix,
    }  # fmt: skip
    connect(host=SHARED_BUCKET, login=ACCESS_KEY, password=SECRET_KEY, extra=extra)
    IcechunkHook().create("weather")
    good, text = IcechunkHook().test_connection()
    assert good
    assert "1 folders" in text
    assert "conditional reads" in text
    connect(host=SHARED_BUCKET, login=ACCESS_KEY, password="wrong", extra=extra)
    good, text = IcechunkHook().test_connection()
    assert not good
    assert text.startswith("no permission: ")
