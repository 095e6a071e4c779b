"""The mutable part of a repository, one module per generation, behind one protocol."""

from __future__ import annotations

from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.repository.ledgers.base import Ledger
from airflow_provider_icechunk.repository.world import REAL_WORLD, World
from airflow_provider_icechunk.storage.base import Storage


def open_ledger(generation: Generation, storage: Storage, world: World = REAL_WORLD) -> Ledger:
    """The ledger of a repository in this generation.

    Each generation is imported when a repository of it is opened: a process rarely meets two, and
    all of them together cost as much time as the rest of the engine.
    """
    match generation:
        case Generation.V2:
            from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger

            return V2Ledger(storage, world)
        case Generation.V1:
            from airflow_provider_icechunk.repository.ledgers.v1 import V1Ledger

            return V1Ledger(storage)
        case Generation.ALPHA:
            from airflow_provider_icechunk.repository.ledgers.alpha import AlphaLedger

            return AlphaLedger(storage)
        case Generation.ALPHA1:
            from airflow_provider_icechunk.repository.ledgers.alpha1 import Alpha1Ledger

            return Alpha1Ledger(storage)
        case Generation.DRAFT:
            from airflow_provider_icechunk.repository.ledgers.draft import DraftLedger

            return DraftLedger(storage, world)
