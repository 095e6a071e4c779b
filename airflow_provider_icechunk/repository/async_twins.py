"""`*_async` twins of synchronous methods, derived in one place instead of being written twice.

A twin runs its method in a thread, so it never blocks the event loop.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def in_thread(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """What `function` returns, called in a thread."""
    # Importing the package must not import what programs without an event loop never need.
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


def add_async_twins(cls: type, names: Iterable[str]) -> None:
    """Give `cls` a `<name>_async` for each of its methods in `names`."""
    for name in names:
        kind = inspect.getattr_static(cls, name)
        setattr(cls, f"{name}_async", _twin(name, kind))


def _twin(name: str, kind: object) -> object:
    if isinstance(kind, classmethod | staticmethod):

        async def on_class(cls: type, *args: Any, **kwargs: Any) -> Any:
            return await in_thread(getattr(cls, name), *args, **kwargs)

        return classmethod(_documented(on_class, name, kind.__func__))

    async def on_object(self: object, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(getattr(self, name), *args, **kwargs)

    assert callable(kind)
    return _documented(on_object, name, kind)


def _documented(
    twin: Callable[..., Coroutine[Any, Any, Any]], name: str, original: Callable[..., Any]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    functools.update_wrapper(twin, original)
    twin.__name__ = f"{name}_async"
    twin.__qualname__ = f"{original.__qualname__}_async"
    twin.__doc__ = f"`{name}`, run in a thread."
    return twin
