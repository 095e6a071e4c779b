"""Branches of repositories as assets: `icechunk://bucket/prefix?branch=main`.

A repository in a directory is `icechunk:///path?branch=main`, one on Google Cloud Storage
`icechunk+gs://bucket/prefix`, one on Azure `icechunk+az://account/container/prefix`. The branch is
in the query because Airflow drops fragments; it defaults to `main`, so that equal assets have equal
URIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, uses_netloc

from airflow.sdk import Asset

from airflow_provider_icechunk.engine.storage.location import StorageLocation, azure_place

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

SCHEME = "icechunk"
_CLOUDS = {"gs": "icechunk+gs", "az": "icechunk+az", "abfs": "icechunk+az", "abfss": "icechunk+az"}
"""The schemes of assets in other clouds than S3, by those of their storage."""

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
    url: str = "",
    account: str | None = None,
) -> Asset:
    """The asset of a branch, in a repository at a prefix in a bucket or at an absolute path.

    :param url: instead of bucket and path, the URL of the repository's storage in any cloud.
    :param account: the storage account of an `az://` URL.
    """
    if url:
        if bucket or prefix or path:
            raise ValueError("pass either url, or bucket (and prefix), or path")
        return _asset_at(StorageLocation(url, account=account), branch, extra)
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

    namespace, name = _location(urlsplit(asset.uri)).lineage()
    return Dataset(namespace=namespace, name=name)


def _asset_at(where: StorageLocation, branch: str, extra: Mapping[str, Any] | None) -> Asset:
    parts = urlsplit(where.url)
    path = parts.path.strip("/")
    if where.scheme == "s3":
        return create_asset(bucket=parts.netloc, prefix=path, branch=branch, extra=extra)
    if where.scheme == "file":
        return create_asset(path=unquote(parts.path), branch=branch, extra=extra)
    if where.scheme not in _CLOUDS:
        raise ValueError(f"{where.scheme}:// storage cannot be an asset")
    host = parts.netloc
    if where.scheme != "gs":
        container, host = azure_place(parts, where.account)
        path = f"{container}/{path}".strip("/")
        if not host:
            raise ValueError("pass the storage account of an az:// URL as `account`")
    query = urlencode({"branch": branch})
    uri = f"{_CLOUDS[where.scheme]}://{host}/{quote(path)}?{query}"
    return Asset(uri=uri, extra=dict(extra or {}))


def _location(uri: SplitResult) -> StorageLocation:
    """Where the repository of an asset is."""
    path = unquote(uri.path)
    match uri.scheme:
        case "icechunk+gs":
            return StorageLocation(f"gs://{uri.netloc}{path}")
        case "icechunk+az":
            container, _, rest = path.strip("/").partition("/")
            return StorageLocation(f"az://{container}/{rest}", account=uri.netloc)
        case _ if not uri.netloc:
            return StorageLocation(path)
        case _:
            return StorageLocation(f"s3://{uri.netloc}{path}")


def _one_reference(query: str) -> str:
    given = parse_qsl(query, keep_blank_values=True)
    if not given:
        return "branch=main"
    name, value = given[0]
    if len(given) > 1 or name not in {"branch", "tag"} or not value:
        raise ValueError("the query of an icechunk URI must be one branch or tag: ?branch=main")
    return urlencode({name: value})
