"""How the files of a folder are called after ids, many names at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.ids import (
    OBJECT_ID_SIZE,
    decode_many,
    encode_many,
    text_length,
)

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_VALUES = np.full(256, 255, np.uint8)
_VALUES[_DIGITS] = np.arange(16, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names that are an id as text and an ending."""

    id_size: int = OBJECT_ID_SIZE
    suffix: str = ""
    hexadecimal: bool = False
    """Whether ids are written as hexadecimal digits, not in base 32."""
    aliases: Mapping[bytes, str] = field(default_factory=dict, compare=False, repr=False)
    """Files that are called otherwise, by the ids that stand for them."""

    @property
    def length(self) -> int:
        """How long every name is."""
        return self._text_length + len(self.suffix)

    def encode(self, ids: NDArray[np.uint8]) -> list[str]:
        """The names of files with `(n, size)` ids."""
        texts = _to_hex(ids) if self.hexadecimal else encode_many(ids)
        names = [text.decode() + self.suffix for text in texts.tolist()]
        if not self.aliases:
            return names
        rows = map(np.ndarray.tobytes, ids)
        return [self.aliases.get(row, name) for row, name in zip(rows, names, strict=True)]

    def decode(self, names: list[str]) -> NDArray[np.uint8]:
        """The `(n, size)` ids behind names of the right length; refuses what is no id."""
        size = self._text_length
        if self.suffix and not all(name.endswith(self.suffix) for name in names):
            raise InvalidInputError(f"not all names end with {self.suffix!r}")
        letters = "".join([name[:size] for name in names]).encode()
        texts = np.frombuffer(letters, f"S{size}")
        return _from_hex(texts, size) if self.hexadecimal else decode_many(texts, self.id_size)

    @property
    def _text_length(self) -> int:
        return 2 * self.id_size if self.hexadecimal else text_length(self.id_size)


def _to_hex(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    rows, size = ids.shape
    digits = np.stack([ids >> 4, ids & 15], axis=2).reshape(rows, 2 * size)
    return np.ascontiguousarray(_DIGITS[digits]).view(f"S{2 * size}").reshape(rows)


def _from_hex(texts: NDArray[np.bytes_], length: int) -> NDArray[np.uint8]:
    values = _VALUES[np.ascontiguousarray(texts).view(np.uint8).reshape(len(texts), length)]
    if (values == 255).any():
        raise InvalidInputError("a name is not made of hexadecimal digits")
    return np.asarray(values[:, ::2] << 4 | values[:, 1::2], np.uint8)
