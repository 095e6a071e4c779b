"""Write Dask arrays into sessions: workers write to forks, which are merged.

A worker in another process gets a copy of a fork with its task, writes to that copy and returns it.
Nothing is lost silently: a writable session cannot be pickled, and the result of every task is
merged before the call returns. Dask is imported by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError

_AT_ONCE = 16
"""Sessions that one task merges; more make fewer and larger tasks."""


def dask() -> Any:
    """The module with its arrays; an error that says so if it is not installed."""
    try:
        return import_module("dask.array")
    except ImportError as error:
        raise UnsupportedError("Dask is not installed here: pip install 'dask[array]'") from error


def store_dask(
    *,
    sources: Sequence[Any],
    targets: Sequence[Any],
    regions: Sequence[Any] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> Any:
    """`dask.array.store` for arrays of a fork: computes, and returns the fork with all changes.

    Give it to the session that was forked: `session.merge(store_dask(...))`.

    :param targets: Zarr arrays in the store of `Session.fork()`. A writable session cannot travel
        to workers of other processes.
    :param split_every: how many results a task merges.
    :param store_kwargs: for `dask.array.store`; `compute`, `return_stored`, `load_stored` and
        `lock` are taken.
    """
    stored = dask().store(
        list(sources),
        list(targets),
        regions=None if regions is None else list(regions),
        compute=False,
        return_stored=True,
        load_stored=False,
        lock=False,
        **store_kwargs,
    )
    return session_merge_reduction(stored, split_every=split_every)


def session_merge_reduction(arrays: Any, *, split_every: int | None, **options: Any) -> Any:
    """Compute arrays whose blocks are Zarr arrays that were written to; their merged sessions."""
    del options
    module = dask()
    given = arrays if isinstance(arrays, list | tuple) else [arrays]
    for one in given:
        if not isinstance(one, module.Array):
            raise TypeError(f"Expected a dask array, received {type(one)!r}")
    at_once = max(2, split_every or _AT_ONCE)
    level = [block for one in given for block in one.to_delayed().ravel().tolist()]
    merge = import_module("dask").delayed(_merge_written)
    while len(level) > 1:
        level = [merge(level[start : start + at_once]) for start in range(0, len(level), at_once)]
    if not level:
        raise InvalidInputError("there is nothing to store: no Dask array was given")
    return _session_of(level[0].compute())


def merge_sessions(*sessions: Any) -> Any:
    """One fork with the changes of all of them; lists of forks are flattened.

    To merge all forks of a session, use `Session.merge`.
    """
    first, *rest = list(_flat(sessions))
    for one in (first, *rest):
        if type(one).__name__ != "ForkSession":
            raise TypeError(
                "merge_sessions only accepts ForkSession objects. Received "
                f"{type(one).__name__!r}; make them with `Session.fork`, and give the result to "
                "`Session.merge`"
            )
    # Threads of one process return the same fork many times.
    others = {id(one): one for one in rest if one is not first}
    first.merge(*others.values())
    return first


def extract_session(zarray: Any, axis: Any = None, keepdims: Any = None) -> Any:
    """The session that a Zarr array was opened with; the other arguments are ignored."""
    del axis, keepdims
    return zarray.store.session


def is_computed_elsewhere(obj: Any, options: Mapping[str, Any]) -> bool:
    """Whether other processes would compute a part of a dataset with Dask's current set-up."""
    variables = obj.variables if hasattr(obj, "data_vars") else {**obj.coords, None: obj}
    if not any(hasattr(getattr(one, "data", None), "dask") for one in variables.values()):
        return False
    base, local, threaded = (import_module(f"dask.{one}") for one in ("base", "local", "threaded"))
    found = base.get_scheduler(scheduler=options.get("scheduler"))
    return found not in (None, threaded.get, local.get_sync)


def write_by_workers(
    obj: Any,
    session: Any,
    place: Mapping[str, Any],
    region: Any,
    encoding: Mapping[str, Any] | None,
    split_every: int | None,
    options: Mapping[str, Any],
) -> None:
    """Like `to_zarr`, but Dask arrays are written to a fork that is then merged.

    Xarray has no public way to leave the writes to the caller, so its writer is called in parts.
    """
    import zarr
    from xarray.backends.common import ArrayWriter
    from xarray.backends.zarr import ZarrStore

    dump_to_store = _dump_to_store()
    dataset = obj if hasattr(obj, "data_vars") else obj.to_dataset(name=obj.name or _UNNAMED)
    default = "r+" if region is not None else "a" if place["append_dim"] is not None else "w-"
    target = ZarrStore.open_group(
        session.store,
        write_region=region,
        consolidate_on_close=False,
        **{**place, "mode": place["mode"] or default},
    )
    dataset = target._validate_and_autodetect_region(dataset)
    target._validate_encoding(encoding or {})
    writer = ArrayWriter()  # type: ignore[no-untyped-call]
    dump_to_store(dataset, target, writer, encoding=encoding or {})
    if not writer.sources:
        return
    fork = session.fork()
    arrays = [zarr.open_array(fork.store, path=one.path, mode="r+") for one in writer.targets]
    regions = [one or tuple(slice(None) for _ in array.shape) for one, array in _pairs(writer)]
    with _scheduler(options):
        session.merge(
            store_dask(
                sources=writer.sources, targets=arrays, regions=regions, split_every=split_every
            )
        )


_UNNAMED = "__xarray_dataarray_variable__"
"""Xarray's name for a `DataArray` without a name."""


def _pairs(writer: Any) -> Iterator[tuple[Any, Any]]:
    return zip(writer.regions, writer.targets, strict=True)


def _scheduler(options: Mapping[str, Any]) -> Any:
    chosen = options.get("scheduler")
    return nullcontext() if chosen is None else import_module("dask.config").set(scheduler=chosen)


def _dump_to_store() -> Any:
    try:
        from xarray.backends.writers import dump_to_store
    except ImportError:
        # Before Xarray 2025.9.
        from xarray.backends.api import dump_to_store  # type: ignore[attr-defined,no-redef]
    return dump_to_store


def _merge_written(written: Sequence[Any]) -> Any:
    return merge_sessions(*(_session_of(one) for one in written))


def _session_of(written: Any) -> Any:
    return extract_session(written) if hasattr(written, "store_path") else written


def _flat(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item
