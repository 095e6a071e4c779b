"""Manifests that are loaded when a session opens, if the configuration asks for it.

All of them are asked for together before the session is handed out, not behind its back: a thread
that still loads when Airflow forks would leave its locks in the child. Nothing is preloaded unless
it was asked for, because most sessions of a pipeline write, or read one array.
"""

from __future__ import annotations

import logging

from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.format.config_conditions import ManifestPreloadCondition
from airflow_provider_icechunk.format.ids import ManifestId
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.storage.pool import run_all

_AT_ONCE = 16
_log = logging.getLogger(__name__)


def preloaded(engine: Engine, snapshot: Snapshot) -> Snapshot:
    """The snapshot, after those of its manifests were loaded that the configuration names."""
    manifest = engine.config.manifest
    if manifest is None or manifest.preload is None:
        return snapshot
    settings = engine.settings
    wanted = worth_loading(snapshot, settings.preload_if, most=settings.preload_max_total_refs)

    def load(identity: ManifestId) -> None:
        try:
            engine.assets.manifest(identity)
        except IcechunkError as error:
            # Whoever reads the array is told; the others need not be.
            _log.info("Manifest %s was not preloaded: %s", engine.show(identity), error.message)

    run_all(load, wanted, at_once=_AT_ONCE)
    return snapshot


def worth_loading(
    snapshot: Snapshot, condition: ManifestPreloadCondition, *, most: int
) -> list[ManifestId]:
    """Manifests of arrays for which the condition holds, up to `most` references. Pure.

    A snapshot that does not say how many references its manifests hold has none.
    """
    found: dict[ManifestId, None] = {}
    left = most
    for path, node in sorted(snapshot.nodes.items()):
        for ref in node.array.manifests if node.array is not None else ():
            file = snapshot.manifest_files.get(ref.id)
            if file is None or ref.id in found or file.num_chunk_refs > left:
                continue
            if condition.matches(path, file.num_chunk_refs):
                found[ref.id] = None
                left -= file.num_chunk_refs
    return list(found)
