"""Whether the native client may be called in this process.

It runs threads of its own, which a fork does not copy. In a child of a process that used it, every
call would wait forever, whichever store it is made on, and a store that the child uses or drops may
block the parent too: both share the descriptors of the event loop. So `usable` is checked before
every call, and a child keeps every store it inherited until it ends.

Other code in the process may use the client as well, and this cannot be detected reliably:
the client's threads get their names only when they first run. So a loaded client counts as used.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

_LIBRARY = "obstore._obstore"
_THREAD = "tokio-"
_FORKED = 0x40
"""In the flags of a Linux process: forked, and no other program started since."""
_FLAGS = 6
"""The position of the flags in `/proc/self/stat` after the name."""


class Holder:
    """The owner of a store, so that a forked child can keep it."""

    __slots__ = ("__weakref__", "store")

    def __init__(self, store: Any) -> None:
        self.store = store
        _holders.add(self)


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


class _Here:
    """What is known about this process."""

    barred = False
    pid = 0
    """The process that used the client through this package."""


def usable() -> bool:
    """Whether a call cannot hang because of a fork."""
    # A fork made outside Python runs no hooks, but changes the process id.
    return not _Here.barred and _Here.pid in {0, os.getpid()}


def claim() -> None:
    """Record that this process is about to use the client."""
    _Here.pid = os.getpid()


def _in_child() -> None:
    if _LIBRARY not in sys.modules:
        return
    _Here.barred = True
    for holder in list(_holders):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder.store))


def _has_threads() -> bool:
    """Whether threads of the client are visibly running here."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that just ended
            if (task / "comm").read_text().startswith(_THREAD):
                return True
    return False


def _may_be_inherited() -> bool:
    """Whether the client was loaded before this module, perhaps by a parent that used it."""
    if _LIBRARY not in sys.modules:
        return False
    try:
        status = Path("/proc/self/stat").read_text()
    except OSError:
        return False
    flags = int(status.rpartition(")")[2].split()[_FLAGS])
    return bool(flags & _FORKED) and not _has_threads()


_Here.barred = _may_be_inherited()
os.register_at_fork(after_in_child=_in_child)
