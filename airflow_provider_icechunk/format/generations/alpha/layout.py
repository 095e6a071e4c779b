"""Keys of `alpha`; its reference documents are those of generation `1`.

A branch is a folder of numbered files. Names count down from the largest 8-character number, so the
newest file sorts first. The first shape separated kind and name of a reference by `:`, all later
ones by `.`.
"""

from __future__ import annotations

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.generations.v1.layout import REFS, V1Layout
from airflow_provider_icechunk.format.ids import decode_base32, encode_base32
from airflow_provider_icechunk.format.names import check_ref_name

SEPARATORS = (".", ":")
"""The one that is written first, then the one of the first shape."""
LAST_SEQUENCE = (1 << 40) - 1

_SEQUENCE_BYTES = 5
_SUFFIX = ".json"


class AlphaLayout(V1Layout):
    """Keys of the immutable objects: the same folders as in all later generations, and one more."""

    attributes = "attributes/"


def branch_prefix(name: str, separator: str = ".") -> str:
    """The folder of a branch, with its slash."""
    return f"{REFS}branch{separator}{check_ref_name(name)}/"


def tag_key(name: str, separator: str = ".") -> str:
    """The reference file of a tag."""
    return f"{REFS}tag{separator}{check_ref_name(name, 'tag')}/ref.json"


def tombstone_key(name: str, separator: str = ".") -> str:
    """The empty file that marks a tag as deleted."""
    return tag_key(name, separator) + ".deleted"


def sequence_file(number: int) -> str:
    """The file name of the `number`-th state of a branch, counted from 0."""
    if not 0 <= number <= LAST_SEQUENCE:
        raise InvalidInputError(f"a branch has no state number {number}; its numbers are used up")
    return encode_base32((LAST_SEQUENCE - number).to_bytes(_SEQUENCE_BYTES, "big")) + _SUFFIX


def parse_sequence_file(name: str) -> int | None:
    """The number behind a file name; `None` for other files in the folder."""
    if not name.endswith(_SUFFIX):
        return None
    try:
        countdown = decode_base32(name.removesuffix(_SUFFIX), _SEQUENCE_BYTES)
    except InvalidInputError:
        return None
    return LAST_SEQUENCE - int.from_bytes(countdown, "big")
