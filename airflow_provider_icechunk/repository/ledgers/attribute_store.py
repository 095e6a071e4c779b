"""Where the attributes files of a repository are kept."""

from __future__ import annotations

import numpy as np

from airflow_provider_icechunk.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.format.generations.attributes import AttributeFiles
from airflow_provider_icechunk.format.generations.base import FileType, Generation, Layout
from airflow_provider_icechunk.format.generations.identities import new_id
from airflow_provider_icechunk.format.ids import AttributesId
from airflow_provider_icechunk.repository.world import REAL_WORLD
from airflow_provider_icechunk.storage.base import Absent, Storage


def attribute_files(
    storage: Storage, layout: Layout, generation: Generation, threshold: int | None
) -> AttributeFiles:
    """The attributes files in the folder that the layout has for them.

    Ids are random, never derived from content: a file that is being collected is not written anew.
    """

    def key(identity: AttributesId) -> str:
        prefix = layout.attributes
        assert prefix is not None
        names = layout.names_in(prefix)
        (name,) = names.encode(np.frombuffer(identity, np.uint8).reshape(1, len(identity)))
        return prefix + name

    def fetch(identity: AttributesId) -> bytes | None:
        found = storage.get(key(identity))
        return None if found is None else found.data

    def store(identity: AttributesId, data: bytes) -> None:
        storage.put(
            key(identity),
            data,
            expect=Absent(),
            metadata=file_marks(generation, FileType.ATTRIBUTES),
            content_type=file_content_type(generation),
        )

    def fresh() -> AttributesId:
        return AttributesId(new_id(generation, REAL_WORLD.entropy(generation.id_size)))

    return AttributeFiles(threshold=threshold, fetch=fetch, store=store, new_id=fresh)
