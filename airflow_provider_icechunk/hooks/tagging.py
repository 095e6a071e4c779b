"""Name a snapshot for ever, in a way that can be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.exceptions import AlreadyExistsError, Kind

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


def tag_snapshot(
    repository: Repository, tag: str, snapshot_id: str, *, if_exists: str = "same"
) -> dict[str, Any]:
    """Tag a snapshot; `if_exists` accepts a tag that is there: `same` snapshot, `skip` or `error`.

    Says which snapshot the tag names, and whether it is new.
    """
    snapshot_id = repository.read_snapshot_id(snapshot_id)
    try:
        repository.create_tag(tag, snapshot_id)
    except AlreadyExistsError as error:
        if error.kind is not Kind.TAG_EXISTS or if_exists == "error":
            raise
        found = repository.lookup_tag(tag)
        if if_exists == "same" and found != snapshot_id:
            raise AlreadyExistsError(
                f"tag {tag!r} names {found} already, not {snapshot_id}; tags never move, so choose "
                "another name, or accept any with if_exists='skip'",
                kind=Kind.TAG_EXISTS,
            ) from None
        return {"tag": tag, "snapshot_id": found, "created": False}
    return {"tag": tag, "snapshot_id": snapshot_id, "created": True}
