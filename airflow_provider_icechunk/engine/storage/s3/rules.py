"""Bucket rules that affect deletion, or that delete objects themselves.

Queried only when a person waits for the answer; rules that may not be read are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .errors import failures

if TYPE_CHECKING:
    from .bucket import Bucket

_NEEDS_RESTORING = frozenset({"GLACIER", "DEEP_ARCHIVE"})


def warnings_about(bucket: Bucket) -> list[str]:
    """The effect of a bucket's rules on repositories in it, in sentences."""
    client, name = bucket.client, {"Bucket": bucket.settings.bucket}
    prefix = bucket.name("")
    asked: list[tuple[Callable[..., Any], Callable[[Any], Iterator[str]]]] = [
        (client.get_bucket_versioning, _of_versions),
        (client.get_object_lock_configuration, _of_locks),
        (client.get_bucket_lifecycle_configuration, lambda answer: _of_ends(answer, prefix)),
    ]
    return [text for ask, told in asked for text in _told(ask, told, name)]


def _told(
    ask: Callable[..., Any], told: Callable[[Any], Iterator[str]], name: dict[str, str]
) -> list[str]:
    try:
        return list(told(ask(**name)))
    except failures():
        return []


def _of_versions(answer: Any) -> Iterator[str]:
    if answer.get("Status") == "Enabled":
        yield (
            "the bucket keeps old versions: a collection frees no space until a lifecycle rule "
            "removes noncurrent versions"
        )


def _of_locks(answer: Any) -> Iterator[str]:
    found = answer.get("ObjectLockConfiguration", {})
    if found.get("ObjectLockEnabled") == "Enabled" and found.get("Rule"):
        yield (
            "objects are locked for a time: what a collection deletes stays stored until the lock "
            "ends"
        )


def _of_ends(answer: Any, prefix: str) -> Iterator[str]:
    for rule in answer.get("Rules", []):
        chosen = rule.get("Filter", {})
        where = (
            chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or rule.get("Prefix", "")
        )
        apart = not (where.startswith(prefix) or prefix.startswith(where))
        if rule.get("Status") != "Enabled" or apart:
            continue
        name = rule.get("ID") or "without a name"
        ends = rule.get("Expiration", {})
        if ends.get("Days") or ends.get("Date"):
            yield (
                f"the lifecycle rule {name!r} deletes objects by their age, also those that a "
                "repository still needs: disable it for this prefix"
            )
        if any(one.get("StorageClass") in _NEEDS_RESTORING for one in rule.get("Transitions", [])):
            yield (
                f"the lifecycle rule {name!r} moves objects to a class that cannot be read without "
                "restoring them: disable it for this prefix"
            )
