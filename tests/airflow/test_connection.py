"""What a connection may say, and that nothing else gets through."""

import json
from pathlib import Path

import pytest
from airflow.sdk import Connection
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind
from airflow_provider_icechunk.hooks.connection import IcechunkConnection, parse_connection

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
        ({}, {"host": ""}, "host is missing"),
        ({}, {"login": "key"}, "together"),
        ({"session_token": SECRET}, {}, "session_token"),
        ({"anonymous": True}, {"login": "k", "password": SECRET}, "choose one"),
        ({"anonymous": True, "aws_conn_id": "aws_default"}, {}, "choose one"),
        ({"endpoint_url": f"https://user:{SECRET}@store"}, {}, "endpoint_url"),
        ({"endpoint_url": "file:///etc/passwd"}, {}, "endpoint_url"),
        ({"prefix": "../other"}, {}, "prefix"),
        ({}, {"port": 9000}, "port"),
        ([], {}, "no JSON object"),
    ],
)
def test_what_cannot_work_is_refused_in_words(
    extra: object, fields: dict[str, object], says: str
) -> None:
    assert says in refusal(extra, **fields)


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
