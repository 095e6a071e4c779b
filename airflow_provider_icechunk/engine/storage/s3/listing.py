"""Pages of listings without boto3, whose first client takes longer than walking a history.

A page is requested as boto3 does, with botocore's signature, and accepted only if it was received
whole and can be read. Anything else is left to boto3, which asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree.ElementTree import Element, ParseError, fromstring

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from airflow_provider_icechunk.engine.storage.secrets import hide_signatures

from .errors import UseClient

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef
    from urllib3 import PoolManager

_PARAMETERS = {
    "Prefix": "prefix",
    "Delimiter": "delimiter",
    "MaxKeys": "max-keys",
    "ContinuationToken": "continuation-token",
}
_TRUTH = {"true": True, "false": False}
_OK = 200


def ask_page(
    pool: PoolManager,
    root: str,
    request: Mapping[str, Any],
    *,
    region: str,
    keys: tuple[str, str, str | None] | None,
    headers: Mapping[str, str],
) -> ListObjectsV2OutputTypeDef:
    """The page that boto3's `list_objects_v2` would return for `request`."""
    url = page_url(root, request)
    asking = AWSRequest("GET", url, headers=dict(headers))
    if keys is not None:
        hide_signatures()
        S3SigV4Auth(ReadOnlyCredentials(*keys), "s3", region).add_auth(asking)
    answer = pool.request(
        "GET", url, headers=dict(asking.headers), redirect=False, enforce_content_length=True
    )
    if answer.status != _OK:
        raise UseClient
    return read_page(answer.data)


def page_url(root: str, request: Mapping[str, Any]) -> str:
    """Where a page is."""
    asked = {"list-type": "2", "encoding-type": "url"}
    asked |= {name: str(request[key]) for key, name in _PARAMETERS.items() if key in request}
    # Quoted as in the signature: `/` too.
    query = "&".join(f"{name}={quote(value, '-_.~')}" for name, value in asked.items())
    return f"{root}{'' if urlsplit(root).path else '/'}?{query}"


def read_page(body: bytes) -> ListObjectsV2OutputTypeDef:
    """A response in the form that boto3 gives it."""
    try:
        # As botocore reads it; the parser limits how far entities may expand.
        listing = fromstring(body)  # noqa: S314
        if _name(listing) != "ListBucketResult":
            raise UseClient
        return cast("ListObjectsV2OutputTypeDef", _page(listing))
    except (ParseError, ValueError, KeyError) as error:
        raise UseClient from error


def _page(listing: Element) -> dict[str, Any]:
    said = _texts(listing)
    decode = unquote_plus if said.get("EncodingType") == "url" else str
    page: dict[str, Any] = {
        name: said[name] for name in ("Name", "KeyCount", "NextContinuationToken") if said.get(name)
    }
    if "Prefix" in said:
        page["Prefix"] = decode(said["Prefix"])
    if "IsTruncated" in said:
        page["IsTruncated"] = _TRUTH[said["IsTruncated"]]
    for part in listing:
        texts = _texts(part)
        if _name(part) == "Contents":
            entry: dict[str, Any] = {}
            if "Key" in texts:
                entry["Key"] = decode(texts["Key"])
            if "Size" in texts:
                entry["Size"] = int(texts["Size"])
            if "LastModified" in texts:
                entry["LastModified"] = _moment(texts["LastModified"])
            page.setdefault("Contents", []).append(entry)
        elif _name(part) == "CommonPrefixes" and "Prefix" in texts:
            folder = {"Prefix": decode(texts["Prefix"])}
            page.setdefault("CommonPrefixes", []).append(folder)
    return page


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment


def _texts(element: Element) -> dict[str, str]:
    return {_name(part): part.text or "" for part in element}


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
