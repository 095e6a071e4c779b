"""Load manifests when a session opens, if the configuration says so.

All of them are requested together before the session is returned, not in the background: a thread
that is still loading when Airflow forks would leave its locks in the child. Nothing is preloaded by
default, because most sessions of a pipeline write, or read one array.
"""

from __future__ import annotations

import logging
from math import prod

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.config.conditions import ManifestPreloadCondition
from airflow_provider_icechunk.engine.format.ids import ManifestId
from airflow_provider_icechunk.engine.format.model import ArrayData, ManifestRef, Snapshot
from airflow_provider_icechunk.exceptions import IcechunkError, UnsupportedError

_AT_ONCE = 16
_log = logging.getLogger(__name__)


def preloaded(core: Core, snapshot: Snapshot) -> Snapshot:
    """The snapshot, after loading those of its manifests that the configuration names."""
    manifest = core.config.manifest
    if manifest is None or manifest.preload is None:
        return snapshot
    settings = core.settings
    try:
        wanted = worth_loading(snapshot, settings.preload_if, most=settings.preload_max_total_refs)
    except UnsupportedError as error:
        # A reader without the extra still reads, just without the head start.
        _log.warning("No manifest was preloaded: %s", error.message)
        return snapshot

    def load(identity: ManifestId) -> None:
        try:
            core.objects.manifest(identity)
        except IcechunkError as error:
            # Reading the array reports the error; other readers need not see it.
            _log.info("Manifest %s was not preloaded: %s", core.format_id(identity), error.message)

    run_all(load, wanted, at_once=_AT_ONCE)
    return snapshot


def worth_loading(
    snapshot: Snapshot, condition: ManifestPreloadCondition, *, most: int
) -> list[ManifestId]:
    """Manifests of arrays for which the condition holds, up to `most` references. Pure.

    Where a snapshot does not say how many references a manifest holds, it is assumed to hold one
    for every chunk in its extents: memory that was not allowed is never used.
    """
    found: dict[ManifestId, None] = {}
    left = most
    for path, node in sorted(snapshot.nodes.items()):
        if node.array is None:
            continue
        for ref in node.array.manifests:
            file = snapshot.manifest_files.get(ref.id)
            if file is None or ref.id in found:
                continue
            count = file.num_chunk_refs or _at_most(node.array, ref)
            if count <= left and condition.matches(path, count):
                found[ref.id] = None
                left -= count
    return list(found)


def _at_most(array: ArrayData, ref: ManifestRef) -> int:
    """How many references of an array a manifest can hold."""
    if ref.extents is not None:
        return prod(stop - start for start, stop in ref.extents)
    return prod(
        -(-side.length // max(1, side.chunk_length)) if side.num_chunks is None else side.num_chunks
        for side in array.shape
    )
