"""`xarray.open_dataset("icechunk:///folder?branch=main", engine="icechunk")`.

The address is that of the repository's storage behind `icechunk+`, as in
`icechunk+s3://bucket/prefix`; `icechunk:///folder` is a folder. The query takes `branch`, `tag`,
`snapshot`, `as_of` and `group`, which are also arguments. Values are read when used. Repositories
stay open between calls, with what they have cached by snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from xarray.backends import BackendEntrypoint
from xarray.backends.zarr import ZarrBackendEntrypoint

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.location import locate
from airflow_provider_icechunk.exceptions import InvalidInputError

_SCHEME = "icechunk"
_QUERY = ("branch", "tag", "snapshot", "as_of", "group")
_KEPT_OPEN = 8


class IcechunkBackend(BackendEntrypoint):
    """Opens snapshots of repositories by address."""

    description = "Open snapshots of Icechunk repositories"
    open_dataset_parameters = ("filename_or_obj", "drop_variables", *_QUERY)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether it is one of these addresses."""
        return isinstance(filename_or_obj, str) and filename_or_obj.startswith(
            (f"{_SCHEME}:", f"{_SCHEME}+")
        )

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | None = None,
        as_of: str | datetime | None = None,
        group: str | None = None,
        **decoding: Any,
    ) -> Any:
        """One group of a snapshot as a `Dataset`; by default the head of `main`.

        :param as_of: a time, as text with a time zone or as a `datetime`: the branch as it was.
        """
        given = {"branch": branch, "tag": tag, "snapshot": snapshot, "as_of": as_of, "group": group}
        session, path = _open(filename_or_obj, given)
        return ZarrBackendEntrypoint().open_dataset(
            session.store,  # type: ignore[arg-type]
            group=path,
            drop_variables=drop_variables,
            consolidated=False,
            zarr_format=3,
            **decoding,
        )

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, Any]:
        """All groups below one, each as a `Dataset`; what `open_datatree` asks for."""
        given = {name: options.pop(name, None) for name in _QUERY}
        session, path = _open(filename_or_obj, given)
        return ZarrBackendEntrypoint().open_groups_as_dict(
            session.store,  # type: ignore[arg-type]
            group=path,
            consolidated=False,
            zarr_format=3,
            **options,
        )

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> Any:
        """The same as a `DataTree`."""
        from xarray import DataTree

        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def parse_address(address: str) -> tuple[str, dict[str, str]]:
    """The URL of the storage, and the version that the address requests. Pure."""
    parts = urlsplit(address)
    scheme = parts.scheme.removeprefix(f"{_SCHEME}+")
    if scheme == parts.scheme != _SCHEME:
        raise InvalidInputError(
            f"{address!r} is not the address of a repository: use `icechunk:///folder` or "
            "`icechunk+s3://bucket/prefix`"
        )
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(query.keys() - set(_QUERY))
    if unknown:
        raise InvalidInputError(
            f"{', '.join(unknown)} in {address!r} is unknown; choose from: {', '.join(_QUERY)}"
        )
    storage = "file" if scheme == _SCHEME else scheme
    return urlunsplit((storage, parts.netloc, parts.path, "", "")), query


def _open(address: Any, given: Mapping[str, Any]) -> tuple[Session, str | None]:
    if not isinstance(address, str):
        raise InvalidInputError(
            f"the engine `icechunk` opens addresses, not a {type(address).__name__}; give the "
            "store of a session to the engine `zarr`"
        )
    storage, asked = parse_address(address)
    twice = [name for name, one in given.items() if one is not None and name in asked]
    if twice:
        raise InvalidInputError(
            f"{twice[0]} is given both in the address and as an argument; give one of them"
        )
    chosen = {**asked, **{name: one for name, one in given.items() if one is not None}}
    group, as_of = chosen.pop("group", None), chosen.pop("as_of", None)
    names = {name: chosen.get(name) for name in ("branch", "tag")}
    names["snapshot_id"] = chosen.get("snapshot")
    if not any(names.values()):
        names["branch"] = "main"
    moment = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    return _repository(storage).readonly_session(**names, as_of=moment), group


@lru_cache(maxsize=_KEPT_OPEN)
def _repository(storage: str) -> Repository:
    """Kept open: a snapshot never changes, and what was read of one serves the next."""
    return Repository.open(locate(storage))
