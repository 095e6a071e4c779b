"""Files that Xarray knows: NetCDF, plain Zarr and GRIB in, NetCDF and plain Zarr out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)

from .datasets import open_dataset, parse_region, xarray

FileFormat = Literal["netcdf", "zarr", "grib"]

_ENDINGS: dict[str, FileFormat] = {
    ".nc": "netcdf",
    ".nc4": "netcdf",
    ".h5": "netcdf",
    ".zarr": "zarr",
    ".grib": "grib",
    ".grib2": "grib",
    ".grb": "grib",
    ".grb2": "grib",
}
_NEEDS = {
    "netcdf": ("h5netcdf", "pip install 'airflow-provider-icechunk[netcdf]'"),
    "grib": (
        "cfgrib and the ecCodes library",
        "pip install 'airflow-provider-icechunk[grib]'",
    ),
}


def format_of(path: str, given: str | None) -> FileFormat:
    """The format of a file: the given one, or else by its extension."""
    if given is not None:
        if given not in ("netcdf", "zarr", "grib"):
            raise InvalidInputError(f"file_format must be netcdf, zarr or grib, not {given!r}")
        return given  # type: ignore[return-value]
    ending = Path(path.rstrip("/")).suffix.lower()
    if ending not in _ENDINGS:
        raise InvalidInputError(
            f"the name of {path!r} does not show its format: set file_format to netcdf, zarr "
            "or grib"
        )
    return _ENDINGS[ending]


def check_reader(kind: FileFormat) -> None:
    """Refuse a format whose library is not installed, and say which it is."""
    try:
        if kind == "netcdf":
            import h5netcdf  # noqa: F401 - to know whether Xarray will find it
        elif kind == "grib":
            import_module("cfgrib")
    except (ImportError, RuntimeError) as error:  # ecCodes may be partly installed
        module, remedy = _NEEDS[kind]
        raise UnsupportedError(
            f"{kind} files need {module}, which cannot be imported here ({error}): {remedy}"
        ) from error


@contextmanager
def open_file(
    source: str,
    file_format: str | None = None,
    variables: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """A file as a `Dataset` whose values are read when they are used."""
    module, kind = xarray(), format_of(source, file_format)
    check_reader(kind)
    if "://" not in source and not Path(source).exists():
        raise NotFoundError(f"there is no file {source} on this machine")
    given = dict(options or {})
    if kind == "zarr":
        found = module.open_zarr(source, **{"chunks": None, "consolidated": False, **given})
    else:
        # By default cfgrib leaves an index next to the file, where a task may not be allowed to
        # write.
        defaults: dict[str, Any] = (
            {"engine": "h5netcdf"}
            if kind == "netcdf"
            else {"engine": "cfgrib", "backend_kwargs": {"indexpath": ""}}
        )
        found = module.open_dataset(source, **{**defaults, **given})
    with found as dataset:
        chosen = _chosen(dataset, variables, source)
        # The encoding belongs to the file: its chunks and filters mean nothing to a repository,
        # and codecs of other formats would be refused.
        yield chosen.drop_encoding()


def write_file(
    session: Any,
    target: str,
    file_format: str | None = None,
    *,
    group: str | None = None,
    variables: Sequence[str] | None = None,
    region: Mapping[str, Any] | None = None,
    encoding: Mapping[str, Any] | None = None,
    if_exists: str = "replace",
) -> dict[str, Any]:
    """Write a snapshot to a file, which appears in its place only when complete."""
    kind, place = format_of(target, file_format), Path(target)
    if kind == "grib":
        raise UnsupportedError("GRIB can only be read: choose netcdf or zarr")
    if if_exists not in ("error", "replace", "skip"):
        raise InvalidInputError(f"if_exists must be error, replace or skip, not {if_exists!r}")
    if "://" in target or not place.is_absolute():
        raise InvalidInputError(
            f"the target must be an absolute path on the worker, not {target!r}"
        )
    check_reader(kind)
    dataset = _chosen(open_dataset(session, group), variables, "the snapshot")
    where = parse_region(region)
    if where == "auto" or (where is not None and "auto" in where.values()):
        raise InvalidInputError("region must be given by positions here, not by 'auto'")
    if where:
        dataset = dataset.isel(dict(where))
    written = not place.exists()
    if place.exists() and if_exists == "error":
        raise AlreadyExistsError(f"{target} already exists: pass if_exists='replace' or 'skip'")
    if written or if_exists == "replace":
        _replace(place, kind, dataset.drop_encoding(), encoding)
        written = True
    return {
        "target": target,
        "snapshot_id": session.snapshot_id,
        "variables": sorted(map(str, dataset.data_vars)),
        "sizes": {str(name): int(size) for name, size in dataset.sizes.items()},
        "written": written,
    }


def _replace(
    place: Path, kind: FileFormat, dataset: Any, encoding: Mapping[str, Any] | None
) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{uuid4().hex[:12]}")
    try:
        given = None if encoding is None else dict(encoding)
        if kind == "zarr":
            dataset.to_zarr(beside, mode="w-", encoding=given, zarr_format=3, consolidated=False)
        else:
            dataset.to_netcdf(beside, engine="h5netcdf", encoding=given)
        if place.is_dir():
            # A folder cannot be replaced in one step: the old one is moved aside first.
            aside = place.with_name(f"{beside.name}.old")
            place.rename(aside)
            beside.rename(place)
            shutil.rmtree(aside)
        else:
            beside.replace(place)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)


def _chosen(dataset: Any, variables: Sequence[str] | None, where: str) -> Any:
    if variables is None:
        return dataset
    missing = [name for name in variables if name not in dataset.variables]
    if missing:
        raise NotFoundError(
            f"{where} has no variable {', '.join(missing)}; it has: "
            f"{', '.join(map(str, dataset.variables))}"
        )
    return dataset[list(variables)]
