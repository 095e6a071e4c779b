"""The objects that only released snapshots need, found through these snapshots.

After an expiration it is known which snapshots left the history, so what they referred to can be
found without listing folders that may hold millions of objects. Each candidate is looked at by its
key for its size and for the time at which it was stored.

Which candidates are garbage is decided as in every collection: what references reach now stays.
A released snapshot that cannot be read contributes its own file only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from airflow_provider_icechunk.engine.concurrency import run_all, together
from airflow_provider_icechunk.engine.format.codec import Layout
from airflow_provider_icechunk.engine.format.ids import ManifestId, SnapshotId
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import MaintenanceError

from .collect_plan import Layer, live_ids, prefix_of
from .listing import NOTHING, Ids, IdUnion, Listing, contains, to_rows, whole
from .reachable import Loader, Reachable, Visited, chunk_ids, visit

_AT_ONCE = 64


def objects_of(
    loader: Loader, released: Listing, live: Reachable, before: int
) -> dict[Layer, Listing]:
    """The objects that only these snapshot files need and that were stored before a time."""
    kept = live_ids(live)
    snapshots = released.take(~contains(kept[Layer.SNAPSHOTS], released.ids))
    read = run_all(
        partial(_visited, loader), [SnapshotId(one) for one in whole(snapshots.ids)], at_once=16
    )
    visited = [one for one in read if one is not None]
    manifests = _without(kept[Layer.MANIFESTS], [one.manifests for one in visited])
    chunks = run_all(partial(_chunks, loader), whole(manifests), at_once=16)
    found = {
        Layer.TRANSACTIONS: _without(kept[Layer.TRANSACTIONS], [snapshots.ids]),
        Layer.MANIFESTS: manifests,
        Layer.ATTRIBUTES: _without(kept[Layer.ATTRIBUTES], [one.attributes for one in visited]),
        Layer.CHUNKS: _without(kept[Layer.CHUNKS], chunks),
    }
    layout = loader.refs.layout
    looks = (
        partial(look_at, loader.storage, layout, prefix_of(layer, layout), ids, before)
        for layer, ids in found.items()
    )
    return {Layer.SNAPSHOTS: snapshots, **dict(zip(found, together(*looks), strict=True))}


def look_at(storage: Storage, layout: Layout, prefix: str | None, ids: Ids, before: int) -> Listing:
    """Those of the objects with these ids that exist and were stored before a time."""
    if prefix is None or not len(ids):
        return Listing.empty(prefix or "")
    names = layout.names_in(prefix)
    keys = [prefix + name for name in names.encode(to_rows(ids))]
    seen = run_all(storage.head, keys, at_once=_AT_ONCE)
    rows = [row for row, item in enumerate(seen) if item is not None and item.micros < before]
    there = [item for item in seen if item is not None and item.micros < before]
    return Listing(
        prefix,
        ids[np.array(rows, np.intp)],
        np.array([item.size for item in there], np.int64),
        np.array([item.micros for item in there], np.int64),
        names,
    )


def _without(kept: Ids, parts: Sequence[Ids]) -> Ids:
    """The set of all ids in the parts that are not kept."""
    union = IdUnion(parts[0][:0] if parts else NOTHING)
    for part in parts:
        union.add(part)
    ids = union.ids()
    return ids[~contains(kept, ids)]


def _visited(loader: Loader, identity: SnapshotId) -> Visited | None:
    try:
        return visit(loader.snapshot(identity), None)
    except MaintenanceError:
        return None


def _chunks(loader: Loader, identity: bytes) -> Ids:
    try:
        return chunk_ids(loader.manifest(ManifestId(identity)))
    except MaintenanceError:
        return NOTHING
