"""Log lines for users of the official package: the same names, filters and variables.

Lines go through Python's logging, under `icechunk` and names below it, so that handlers of a
program get them like any others. A filter, given or in `ICECHUNK_LOG`, also prints them to the
standard error stream, or with `ICECHUNK_LOG_TO_STDOUT` to the standard output.
"""

from __future__ import annotations

import logging
import os
import sys
from difflib import get_close_matches
from typing import TextIO

ROOT = "icechunk"
VARIABLE = "ICECHUNK_LOG"
_TO_STDOUT = "ICECHUNK_LOG_TO_STDOUT"
_OFF = logging.CRITICAL + 1
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": _OFF,
    "false": _OFF,
    "": _OFF,
}
_CLOSE = 0.8


def logger(name: str) -> logging.Logger:
    """The logger of one part, such as `repository`."""
    return logging.getLogger(f"{ROOT}.{name}")


def set_filter(directives: str | None) -> None:
    """Print what a filter lets through: a level, or levels by name, such as `icechunk=debug,warn`.

    `None` takes `ICECHUNK_LOG`, and without it nothing is printed. Official spellings are
    accepted, `icechunk::repository:trace` too; names of other programs change nothing.
    """
    text = os.environ.get(VARIABLE) if directives is None else directives
    root = logging.getLogger(ROOT)
    for known in [one for one in root.handlers if isinstance(one, _Printer)]:
        root.removeHandler(known)
    for below in [one for one in logging.Logger.manager.loggerDict if one.startswith(f"{ROOT}.")]:
        logging.getLogger(below).setLevel(logging.NOTSET)
    root.setLevel(logging.NOTSET if text is None else _OFF)
    if text is None:
        return
    root.addHandler(_Printer())
    for part in text.split(","):
        name, level = _parsed(part.strip())
        if name is not None:
            logging.getLogger(name).setLevel(level)


def _parsed(directive: str) -> tuple[str | None, int]:
    """Which logger a directive is for, if for one of these, and its level."""
    name, separator, level = directive.rpartition("=" if "=" in directive else ":")
    name = name.rstrip(":")
    if not separator:
        if directive.lower() in _LEVELS:
            return ROOT, _LEVELS[directive.lower()]
        name, level = directive, "trace"
    crate = name.split("::")[0]
    if crate != ROOT:
        if get_close_matches(crate, [ROOT], cutoff=_CLOSE):
            print(  # noqa: T201 - there may be no logging yet that would show it
                f"WARNING: the log filter names {crate!r}; did you mean {ROOT!r}?", file=sys.stderr
            )
        return None, _OFF
    return name.replace("::", "."), _LEVELS.get(level.lower(), logging.DEBUG)


class _Printer(logging.StreamHandler[TextIO]):
    """Prints to whatever is the standard stream at the moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Looked up each time: programs replace their streams."""
        return sys.stdout if os.environ.get(_TO_STDOUT) else sys.stderr
