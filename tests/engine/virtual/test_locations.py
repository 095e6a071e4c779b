import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.virtual.locations import (
    Location,
    is_private_host,
    parse_location,
    shown,
)
from airflow_provider_icechunk.exceptions import VirtualAccessDeniedError


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket/a/b.nc", Location("s3", "bucket", None, "/a/b.nc")),
        ("S3://Bucket/a//b", Location("s3", "Bucket", None, "/a//b")),
        ("s3://bucket/a%20b%3F", Location("s3", "bucket", None, "/a b?")),
        ("s3://bucket/50%", Location("s3", "bucket", None, "/50%")),
        ("HTTPS://Example.ORG:443/X", Location("https", "example.org", None, "/X")),
        ("http://example.org:8080/x", Location("http", "example.org", 8080, "/x")),
        ("https://example.org", Location("https", "example.org", None, "/")),
        ("https://[2001:DB8::1]:8/x", Location("https", "2001:db8::1", 8, "/x")),
        ("file:///data/a.nc", Location("file", "", None, "/data/a.nc")),
        ("file://localhost/data/", Location("file", "", None, "/data/")),
        ("file:///data/x/../a.nc", Location("file", "", None, "/data/a.nc")),
        ("file:///data/%2e%2e/etc/passwd", Location("file", "", None, "/etc/passwd")),
        ("file:////data//a", Location("file", "", None, "/data/a")),
        ("vcc://name/a/b", Location("vcc", "name", None, "/a/b")),
    ],
)
def test_locations_are_taken_apart_and_spelt_in_one_way(url, location):
    assert parse_location(url) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket/key",
        "/etc/passwd",
        "s3:/bucket/key",
        "s3:///key",
        "ftp://host/a",
        "gopher://host/a",
        "data:text/plain,a",
        "s3://bucket/a/../b",
        "s3://bucket/%2e%2e/b",
        "s3://bucket/./b",
        "s3://user@bucket/b",
        "s3://bucket:80/b",
        "s3://arn:aws:s3:eu-west-1:1:accesspoint/x/b",
        "s3://bucket/a?versionId=3",
        "s3://bucket/a#b",
        "s3://bucket/a\nb",
        "s3://bucket/a%00b",
        "s3://bucket/%ff",
        "https://user:secret@host/a",
        "https://host@evil/a",
        "https://host\\@evil/a",
        "https://host/public/../private",
        "https://host/public/%2e%2e/private",
        "https://host/public/%252e%252e/private",
        "https://host/public/.%2e/private",
        "https://host/public%2f..%2fprivate",
        "https://host/public/..;x/private",
        "https://host/public/..\\private",
        "https://host/public/%5c..%5cprivate",
        "https://host/a%0d%0aHost: evil",
        "https://ho st/a",
        "https://host:99999/a",
        "https://host:/a",
        "https://host:0/a",
        "https://host:8a/a",
        "https://münchen.example/a",
        "https://host%2eevil/a",
        "https://host../a",
        "https://-/a",
        "https://[::1/a",
        "https://[fe80::1%25eth0]/a",
        "https://[zz]/a",
        "https:///a",
        "file://server/share/a",
        "file:///data/a\x00",
        "s3://bucket/" + "a" * 20_000,
    ],
)
def test_what_could_be_misunderstood_is_refused(url):
    with pytest.raises(VirtualAccessDeniedError):
        parse_location(url)


@given(st.text(max_size=60).map(lambda tail: "https://host/" + tail) | st.text(max_size=60))
def test_no_other_error_escapes_and_what_is_sent_is_what_was_compared(url):
    try:
        location = parse_location(url)
    except VirtualAccessDeniedError:
        return
    assert parse_location(str(location)) == location


def test_a_prefix_covers_what_is_below_it_only():
    prefix = parse_location("s3://bucket/foo/")
    assert prefix.covers(parse_location("s3://bucket/foo/a"))
    assert not prefix.covers(parse_location("s3://bucket/foo-prod/a"))
    assert not prefix.covers(parse_location("s3://bucket/foo"))
    assert not parse_location("s3://bucket/foo").covers(parse_location("s3://bucket/foobar"))


def test_messages_show_no_passwords_and_no_queries():
    text = shown("https://user:hunter2@host/a?X-Amz-Signature=hunter3" + "x" * 1000)
    assert "hunter" not in text
    assert len(text) < 350


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("169.254.169.254", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("fe80::1", True),
        ("2130706433", True),
        ("0x7f.1", True),
        ("127.1", True),
        ("localhost", True),
        ("a.localhost", True),
        ("minio", True),
        ("metadata.google.internal", True),
        ("printer.local.", True),
        ("8.8.8.8", False),
        ("example.org", False),
        ("s3.example.com", False),
    ],
)
def test_private_hosts_are_told_by_their_spelling(host, private):
    assert is_private_host(host) is private
