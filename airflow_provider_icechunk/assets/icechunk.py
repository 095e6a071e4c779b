"""Branches of repositories as assets: `icechunk://bucket/prefix?branch=main`.

A repository in a directory is `icechunk:///path?branch=main`. The branch is part of the address,
in the query, because Airflow drops fragments; without one it is `main`, so that equal things have
equal addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import (
    SplitResult,
    parse_qsl,
    quote,
    unquote,
    urlencode,
    urlsplit,
    uses_netloc,
)

from airflow.sdk import Asset

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

SCHEME = "icechunk"

# Only then does Python keep the `//` of `icechunk:///path` when it puts an address together.
if SCHEME not in uses_netloc:
    uses_netloc.append(SCHEME)


def create_asset(
    *,
    bucket: str = "",
    prefix: str = "",
    path: str = "",
    branch: str = "main",
    extra: Mapping[str, Any] | None = None,
) -> Asset:
    """The asset of a branch: of a repository at a prefix in a bucket, or at an absolute path."""
    if bool(bucket) == bool(path):
        raise ValueError("a repository is either in a bucket, below a prefix, or at a path")
    if path and (prefix or not path.startswith("/")):
        raise ValueError("the path of a repository is absolute, and has no prefix")
    where = quote((path or prefix).strip("/"))
    query = urlencode({"branch": branch})
    return Asset(uri=f"{SCHEME}://{bucket}/{where}?{query}", extra=dict(extra or {}))


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """One spelling for every branch; a `ValueError` says what is wrong with an address."""
    segments = [segment for segment in uri.path.split("/") if segment]
    if any(unquote(segment) in {".", ".."} for segment in segments):
        raise ValueError("an icechunk address has no '.' or '..' in its path")
    if not uri.netloc and not segments:
        raise ValueError("an icechunk address names a bucket or an absolute path")
    if "@" in uri.netloc or ":" in uri.netloc:
        raise ValueError("an icechunk address has a bucket, and neither user, password nor port")
    return uri._replace(path="/" + "/".join(segments), query=_one_reference(uri.query), fragment="")


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:
    """The data set that OpenLineage knows: the repository, whatever the branch."""
    del lineage_context
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    path = unquote(uri.path)
    if not uri.netloc:
        return Dataset(namespace="file", name=path)
    return Dataset(namespace=f"s3://{uri.netloc}", name=path.strip("/") or "/")


def _one_reference(query: str) -> str:
    given = parse_qsl(query, keep_blank_values=True)
    if not given:
        return "branch=main"
    name, value = given[0]
    if len(given) > 1 or name not in {"branch", "tag"} or not value:
        raise ValueError("an icechunk address has one branch or one tag in its query: ?branch=main")
    return urlencode({name: value})
