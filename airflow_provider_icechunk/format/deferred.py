"""A mapping that is made when it is first looked into.

Walking a history passes hundreds of snapshots of which only names, times and parents matter. Their
trees are decoded, and checked, only if somebody asks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import TypeVar

from airflow_provider_icechunk.budget import Purse

_making = threading.Lock()
"""For all: a decoder counts what it has spent on its file, so no two may share one."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Deferred(Mapping[Key, Value]):
    """Knows its size at once and its content later. Looking into it may raise `FormatError`."""

    __slots__ = ("_content", "_make", "_memory", "_size")

    def __init__(
        self, size: int, make: Callable[[], Mapping[Key, Value]], memory: Purse | None = None
    ) -> None:
        self._size = size
        self._memory = memory
        self._make: Callable[[], Mapping[Key, Value]] | None = make
        self._content: Mapping[Key, Value] | None = None

    def content(self) -> Mapping[Key, Value]:
        """What it stands for."""
        if self._content is None:
            with _making:
                if self._make is not None:
                    with self._memory or nullcontext():
                        self._content = self._make()
                    # It holds the whole file, which nobody needs any more.
                    self._make = None
        assert self._content is not None
        return self._content

    def __getitem__(self, key: Key) -> Value:
        return self.content()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.content())

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[type[dict[Key, Value]], tuple[Mapping[Key, Value]]]:
        """Travels as what it stands for."""
        return (dict, (dict(self.content()),))
