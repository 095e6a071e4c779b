"""Branches of repositories as assets: `icechunk://bucket/prefix?branch=main`.

A repository in a directory is `icechunk:///path?branch=main`. The branch is in the query because
Airflow drops fragments; it defaults to `main`, so that equal assets have equal URIs.
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

# Without this, `urlunsplit` drops the `//` of `icechunk:///path`.
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
    """The asset of a branch, in a repository at a prefix in a bucket or at an absolute path."""
    if bool(bucket) == bool(path):
        raise ValueError("pass either bucket (and prefix) or path")
    if path and (prefix or not path.startswith("/")):
        raise ValueError("path must be absolute and cannot be combined with prefix")
    where = quote((path or prefix).strip("/"))
    query = urlencode({"branch": branch})
    return Asset(uri=f"{SCHEME}://{bucket}/{where}?{query}", extra=dict(extra or {}))


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalise an asset URI; raises `ValueError` if it is invalid."""
    segments = [segment for segment in uri.path.split("/") if segment]
    if any(unquote(segment) in {".", ".."} for segment in segments):
        raise ValueError("the path of an icechunk URI must not contain '.' or '..'")
    if not uri.netloc and not segments:
        raise ValueError("an icechunk URI needs a bucket or an absolute path")
    if "@" in uri.netloc or ":" in uri.netloc:
        raise ValueError("an icechunk URI must not contain a user, password or port")
    return uri._replace(path="/" + "/".join(segments), query=_one_reference(uri.query), fragment="")


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:
    """The OpenLineage dataset: the repository, without the branch."""
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
        raise ValueError("the query of an icechunk URI must be one branch or tag: ?branch=main")
    return urlencode({name: value})
