"""Branches, tags and the stored configuration: everything in a repository that changes.

One module per generation, behind one protocol. Every change is one conditional write, so of two
writers one wins and the other learns that it lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.world import REAL_WORLD, World
from airflow_provider_icechunk.exceptions import UnsupportedError

from .base import Refs

if TYPE_CHECKING:
    from .v2 import V2Refs


def open_refs(generation: Generation, storage: Storage, world: World = REAL_WORLD) -> Refs:
    """The refs of a repository in this generation.

    Each generation is imported when a repository of it is opened: a process rarely needs two, and
    importing all of them takes as long as the rest of the engine.
    """
    match generation:
        case Generation.V2:
            from .v2 import V2Refs

            return V2Refs(storage, world)
        case Generation.V1:
            from .v1 import V1Refs

            return V1Refs(storage)
        case Generation.ALPHA:
            from airflow_provider_icechunk.engine.refs.legacy.alpha import AlphaRefs

            return AlphaRefs(storage)
        case Generation.ALPHA1:
            from airflow_provider_icechunk.engine.refs.legacy.alpha1 import Alpha1Refs

            return Alpha1Refs(storage)
        case Generation.DRAFT:
            from airflow_provider_icechunk.engine.refs.legacy.draft import DraftRefs

            return DraftRefs(storage, world)


def v2_refs(refs: Refs, what: str) -> V2Refs:
    """The refs, checked to be of generation `2`, which `what` needs."""
    if refs.generation is Generation.V2:
        from .v2 import V2Refs

        if isinstance(refs, V2Refs):
            return refs
    raise UnsupportedError(
        f"this repository is of generation `{refs.generation}`; {what} needs generation `2`: "
        "upgrade it with `migrate`"
    )
