"""A storage that records writes and requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from airflow_provider_icechunk.engine.storage.base import (
    Data,
    Deleted,
    Expectation,
    PutOutcome,
    Storage,
)
from airflow_provider_icechunk.testing.storages import WrappedStorage


class RecordingStorage(WrappedStorage):
    """Remembers key and size of every write, and refuses to delete."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.puts: list[tuple[str, int]] = []

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        self.puts.append((key, memoryview(data).nbytes))
        return super().put(key, data, expect=expect, metadata=metadata, content_type=content_type)

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        raise AssertionError(f"a writer wanted to delete {list(keys)}")

    @property
    def folders(self) -> Counter[str]:
        """How many objects were written, by the first part of their keys."""
        return Counter(key.split("/", 1)[0] for key, _ in self.puts)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.puts)
