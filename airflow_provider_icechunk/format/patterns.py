"""Pattern search for stored conditions, with bounded effort.

Patterns may come from a stored configuration and are therefore hostile.
"""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


def pattern_found(pattern: str, text: str) -> bool:
    """Whether `pattern` is found in `text`; a pattern that is none is found nowhere."""
    compiled = _compiled(pattern)
    return compiled is not None and compiled.search(text) is not None
