"""Open foreign files of any known kind, through the grants of a reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.engine.virtual.sources import ForeignFile, SourceFile
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError

from . import netcdf3
from .contents import Content
from .hdf5 import Hdf5Content, load_h5py


@contextmanager
def opened(reader: VirtualReader, source: ForeignFile) -> Iterator[Content]:
    """An open file, recognised by its first bytes; errors name it."""
    raw = SourceFile(reader, source)
    try:
        if raw.read(len(netcdf3.MAGIC)) == netcdf3.MAGIC:
            yield netcdf3.NetCdf3Content(raw, source.location, source.size)
            return
        raw.seek(0)
        with load_h5py().File(raw, "r") as file:
            yield Hdf5Content(file, source.location)
    except IcechunkError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"{source.location}: not an HDF5, NetCDF4 or NetCDF3 file, or damaged ({error})"
        ) from None
