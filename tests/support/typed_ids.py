"""Ids as people type them."""

from __future__ import annotations

LOOKS_LIKE = {"0": "O", "1": "l"}


def spellings(identity: str) -> list[str]:
    """Other texts of the same id: in the other case, with letters that look like its digits."""
    similar = "".join(LOOKS_LIKE.get(letter, letter) for letter in identity)
    return [identity.swapcase(), similar, similar.swapcase(), similar.replace("l", "i")]
