"""Storages that official 2.x has beside those of 1.1: refused, each with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Never, Unpack

from airflow_provider_icechunk.exceptions import UnsupportedError
from airflow_provider_icechunk.virtual.locations import shown
from airflow_provider_icechunk.virtual.storages import S3CredentialArguments


def http_storage(
    base_url: str,
    opts: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Never:
    """Refused: web servers neither list references nor say what changed; see the message."""
    del opts, headers
    raise UnsupportedError(
        f"a repository behind a web server ({shown(base_url)}) cannot be opened; if it is in a "
        "public bucket, use s3_storage with anonymous=True and its endpoint_url, otherwise copy it "
        "to a folder (virtual chunks may be on web servers: see http_store)"
    )


def redirect_storage(base_url: str) -> Never:
    """Refused: where a repository is must be said by the caller, not by a web server."""
    raise UnsupportedError(
        f"{shown(base_url)} is not asked where the repository is; open the place it redirects to, "
        "with s3_storage or local_filesystem_storage"
    )


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    **credentials: Unpack[S3CredentialArguments],
) -> Never:
    """Refused: Hugging Face buckets were never tried; their S3 gateway is open to those who do."""
    del prefix, network_stream_timeout_seconds, legacy_rooted_keys, credentials
    del read_headers, write_headers, headers
    raise UnsupportedError(
        f"Hugging Face buckets (here {namespace}/{bucket}) are not supported by name; use "
        "s3_storage with endpoint_url of their S3 gateway and the S3 keys of your token: whether "
        "it honours conditional writes is tried out before the first commit"
    )
