"""The mutable part of a repository, one module per generation, behind one protocol."""

from __future__ import annotations

from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.repository.ledgers.alpha import AlphaLedger
from airflow_provider_icechunk.repository.ledgers.alpha1 import Alpha1Ledger
from airflow_provider_icechunk.repository.ledgers.base import Ledger
from airflow_provider_icechunk.repository.ledgers.draft import DraftLedger
from airflow_provider_icechunk.repository.ledgers.v1 import V1Ledger
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger
from airflow_provider_icechunk.repository.world import REAL_WORLD, World
from airflow_provider_icechunk.storage.base import Storage


def open_ledger(generation: Generation, storage: Storage, world: World = REAL_WORLD) -> Ledger:
    """The ledger of a repository in this generation."""
    match generation:
        case Generation.V2:
            return V2Ledger(storage, world)
        case Generation.V1:
            return V1Ledger(storage)
        case Generation.ALPHA:
            return AlphaLedger(storage)
        case Generation.ALPHA1:
            return Alpha1Ledger(storage)
        case Generation.DRAFT:
            return DraftLedger(storage, world)
