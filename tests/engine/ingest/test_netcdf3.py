"""NetCDF3 files: their bytes are made here by the specification, their values read through Zarr."""

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.api import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    local_filesystem_storage,
    local_filesystem_store,
    refer_to_files,
)
from airflow_provider_icechunk.exceptions import IcechunkError

KINDS = {"i1": 1, "i2": 3, "i4": 4, "f4": 5, "f8": 6, "u1": 7, "u2": 8, "u4": 9, "i8": 10}
Variables = Mapping[str, tuple[Sequence[str], np.ndarray, Mapping[str, object]]]


class Writer:
    """Bytes of a header, as a version of the format spells numbers."""

    def __init__(self, version: int) -> None:
        self.wide = version == 5

    def number(self, value: int) -> bytes:
        return struct.pack(">Q" if self.wide else ">I", value)

    def name(self, text: str) -> bytes:
        return self.number(len(text)) + padded(text.encode())

    def attributes(self, found: Mapping[str, object]) -> bytes:
        if not found:
            return struct.pack(">I", 0) + self.number(0)
        parts = [struct.pack(">I", 12), self.number(len(found))]
        for key, value in found.items():
            text = value.encode() if isinstance(value, str) else None
            one = np.asarray(value)
            kind = 2 if text is not None else KINDS[one.dtype.str[1:]]
            size = one.size if text is None else len(text)
            parts += [self.name(key), struct.pack(">I", kind), self.number(size)]
            parts.append(padded(raw_of(one) if text is None else text))
        return b"".join(parts)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def raw_of(data: np.ndarray) -> bytes:
    return np.asarray(data).astype(data.dtype.newbyteorder(">")).tobytes()


def netcdf3(version: int, records: int, variables: Variables, *, stream: bool = False) -> bytes:
    """A file; `time` is the record dimension, `x` has three cells."""
    made = Writer(version)
    number, order = made.number, ["time", "x"]

    def head(begins: Mapping[str, int]) -> bytes:
        parts = [b"CDF", bytes([version])]
        parts.append(b"\xff" * len(number(0)) if stream else number(records))
        parts += [struct.pack(">I", 10), number(2)]
        parts += [made.name("time"), number(0), made.name("x"), number(3)]
        parts.append(made.attributes({"title": "three"}))
        parts += [struct.pack(">I", 11), number(len(variables))]
        for key, (dims, data, attrs) in variables.items():
            parts += [made.name(key), number(len(dims)), *(number(order.index(d)) for d in dims)]
            parts += [made.attributes(attrs), struct.pack(">I", KINDS[data.dtype.str[1:]])]
            parts += [number(0), struct.pack(">I" if version == 1 else ">Q", begins[key])]
        return b"".join(parts)

    begins = dict.fromkeys(variables, 0)
    place, body = len(head(begins)), b""
    grown = [key for key, (dims, _, _) in variables.items() if dims and dims[0] == "time"]
    for key, (_, data, _) in variables.items():
        if key not in grown:
            begins[key] = place + len(body)
            body += padded(raw_of(data))
    for record in range(records):
        for key in grown:
            begins[key] = begins[key] or place + len(body)
            raw = raw_of(variables[key][1][record])
            body += raw if len(grown) == 1 else padded(raw)
    return head(begins) + body


def granted(root: Path) -> Repository:
    (root / "files").mkdir()
    prefix = f"file://{root}/files/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, local_filesystem_store(f"{root}/files"))
    )
    storage = local_filesystem_storage(str(root / "repository"))
    return Repository.create(storage, config, {prefix: None})


def variables(first: int, records: int, *, alone: bool = False) -> Variables:
    whole = np.arange(first * 3, (first + records) * 3).reshape(records, 3)
    found: dict[str, tuple[Sequence[str], np.ndarray, Mapping[str, object]]] = {
        "x": (("x",), np.arange(3, dtype="f4"), {"units": "m"}),
        "crs": ((), np.array(7, "i4"), {}),
        "t": (
            ("time", "x"),
            whole.astype("i2"),
            {"scale_factor": np.float64(0.5), "_FillValue": np.int16(-999)},
        ),
    }
    if not alone:
        units = f"days since 2026-01-{1 + first:02d}"
        found["time"] = (("time",), np.arange(records, dtype="f8"), {"units": units})
        found["flag"] = (("time", "x"), (whole % 2).astype("i1"), {})
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", [1, 2, 5])
def test_records_of_many_files_read_as_one_data_set(
    tmp_path: Path, version: int, stream: bool
) -> None:
    repository = granted(tmp_path)
    files = []
    for number, (first, records) in enumerate(((0, 4), (4, 3), (7, 5))):
        files.append(str(tmp_path / "files" / f"{number}.nc"))
        data = netcdf3(version, records, variables(first, records), stream=stream)
        Path(files[-1]).write_bytes(data)
    session = repository.writable_session("main")
    refer_to_files(session, files)
    found = xr.open_zarr(session.store, consolidated=False)
    assert found.attrs == {"title": "three"}
    assert found["t"].dims == ("time", "x")
    assert np.array_equal(found["t"], np.arange(36).reshape(12, 3) / 2)
    assert np.array_equal(found["flag"], np.arange(36).reshape(12, 3) % 2)
    assert np.array_equal(
        found["time"], np.datetime64("2026-01-01", "ns") + np.arange(12) * np.timedelta64(1, "D")
    )
    assert np.array_equal(found["x"], [0, 1, 2])
    assert found["crs"].item() == 7


def test_records_of_one_variable_alone_are_not_padded(tmp_path: Path) -> None:
    repository = granted(tmp_path)
    path = tmp_path / "files" / "alone.nc"
    path.write_bytes(netcdf3(1, 4, variables(0, 4, alone=True)))
    session = repository.writable_session("main")
    refer_to_files(session, [str(path)])
    found = xr.open_zarr(session.store, consolidated=False)
    assert np.array_equal(found["t"], np.arange(12).reshape(4, 3) / 2)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, Path]:
    root = tmp_path_factory.mktemp("damaged")
    return granted(root), root / "files" / "one.nc"


@given(data=st.data())
def test_a_damaged_header_is_refused_or_read(
    damaged: tuple[Repository, Path], data: st.DataObject
) -> None:
    repository, path = damaged
    version = data.draw(st.sampled_from([1, 5]))
    whole = bytearray(netcdf3(version, 4, variables(0, 4)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(4, len(whole)))])
    session = repository.writable_session("main")
    with suppress(IcechunkError):
        refer_to_files(session, [str(path)])
