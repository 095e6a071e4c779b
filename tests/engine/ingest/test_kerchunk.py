"""References that Kerchunk made: as JSON, as a mapping and as a Parquet folder."""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

import airflow_provider_icechunk.api as icechunk

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
TEMPERATURES = np.arange(12, dtype=">f4").reshape(4, 3)
COUNTS = np.arange(8, dtype="<i2") * 300
LATITUDES = np.array([10.0, 20.0, 30.0])


def described(values: Any, chunks: list[int], **more: Any) -> dict[str, Any]:
    return {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": chunks,
        "dtype": values.dtype.str,
        "compressor": None,
        "filters": None,
        "fill_value": None,
        "order": "C",
        **more,
    }


DOCUMENTS: dict[str, Any] = {
    ".zgroup": {"zarr_format": 2},
    ".zattrs": {"title": "two files"},
    "temp/.zarray": described(TEMPERATURES, [2, 3], fill_value="NaN"),
    "temp/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "lat"], "units": "K"},
    "lat/.zarray": described(LATITUDES, [3]),
    "lat/.zattrs": {"_ARRAY_DIMENSIONS": ["lat"]},
    "deep/counts/.zarray": described(
        COUNTS,
        [4],
        fill_value=-1,
        filters=[{"id": "shuffle", "elementsize": 2}],
        compressor={"id": "zlib", "level": 1},
    ),
    "deep/counts/.zattrs": {"_ARRAY_DIMENSIONS": ["n"], "scale_factor": 0.5},
    "deep/.zgroup": {"zarr_format": 2},
    "deep/.zattrs": {"depth": 1},
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.nc").write_bytes(b"HEAD" + TEMPERATURES[:2].tobytes())
    (folder / "b.nc").write_bytes(TEMPERATURES[2:].tobytes())
    shuffled = numcodecs.Shuffle(2).encode(COUNTS[:4])
    (folder / "c.bin").write_bytes(zlib.compress(bytes(shuffled), 1))
    return folder


def refs(files: Path) -> dict[str, Any]:
    """Chunks by range, by whole file, in the references; the second of `counts` is missing."""
    return {
        **{key: json.dumps(value) for key, value in DOCUMENTS.items()},
        "temp/0.0": ["{{where}}/a.nc", 4, 24],
        "temp/1.0": [f"{files}/b.nc"],
        "lat/0": "base64:" + base64.b64encode(LATITUDES.tobytes()).decode(),
        "deep/counts/0": [f"file://{files}/c.bin", 0, (files / "c.bin").stat().st_size],
    }


def as_mapping(files: Path, tmp_path: Path) -> Any:
    return {"version": 1, "templates": {"where": f"file://{files}"}, "refs": refs(files)}


def as_json(files: Path, tmp_path: Path) -> Any:
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(as_mapping(files, tmp_path)))
    return str(path)


def as_parquet(files: Path, tmp_path: Path) -> Any:
    folder = tmp_path / "refs.parq"
    rows = {
        "temp": [(f"{files}/a.nc", 4, 24, None)],
        "temp-1": [(f"{files}/b.nc", 0, 0, None)],
        "lat": [(None, 0, 0, LATITUDES.tobytes())],
        "deep/counts": [(f"{files}/c.bin", 0, (files / "c.bin").stat().st_size, None)],
    }
    for name, found in rows.items():
        path, _, record = name.partition("-")
        (folder / path).mkdir(parents=True, exist_ok=True)
        table = pa.table(
            dict(zip(("path", "offset", "size", "raw"), zip(*found, strict=True), strict=True))
        )
        pq.write_table(table, folder / path / f"refs.{record or 0}.parq")
    (folder / ".zmetadata").write_text(json.dumps({"metadata": DOCUMENTS, "record_size": 1}))
    return folder


def repository(files: Path) -> icechunk.Repository:
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{files}/", store))
    made = icechunk.Repository.create(
        icechunk.local_filesystem_storage(files.parent / "repository"),
        config,
        authorize_virtual_chunk_access={f"file://{files}/": None},
    )
    made.save_config()
    return made


@pytest.mark.parametrize("form", [as_mapping, as_json, as_parquet])
def test_every_form_gives_the_same_arrays(form: Any, files: Path, tmp_path: Path) -> None:
    repo = repository(files)
    session = repo.writable_session("main")
    assert icechunk.refer_to_kerchunk(session, form(files, tmp_path)) == 4
    session.commit("references")
    store = repo.readonly_session("main").store
    opened = xr.open_zarr(store, consolidated=False)
    np.testing.assert_array_equal(opened["temp"], TEMPERATURES)
    np.testing.assert_array_equal(opened["lat"], LATITUDES)
    assert opened["temp"].dims == ("time", "lat")
    assert opened.attrs == {"title": "two files"}
    counts = zarr.open_array(store, path="deep/counts", mode="r")
    np.testing.assert_array_equal(counts[:4], COUNTS[:4])
    np.testing.assert_array_equal(counts[4:], [-1] * 4)
    deep = xr.open_zarr(store, group="deep", consolidated=False)
    # What is missing is so in Xarray, too, as with Zarr 2.
    assert np.isnan(deep["counts"][4:]).all()
    assert deep.attrs == {"depth": 1}


def test_the_official_library_reads_them(files: Path, tmp_path: Path) -> None:
    official = pytest.importorskip("icechunk")
    session = repository(files).writable_session("main")
    icechunk.refer_to_kerchunk(session, as_mapping(files, tmp_path))
    session.commit("references")
    theirs = official.Repository.open(
        official.local_filesystem_storage(str(files.parent / "repository")),
        authorize_virtual_chunk_access={f"file://{files}/": None},
    )
    group = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(group["temp"], TEMPERATURES)
    np.testing.assert_array_equal(group["deep/counts"][:4], COUNTS[:4])


def test_a_file_that_changed_is_noticed_and_one_that_is_not_granted_is_refused(
    files: Path, tmp_path: Path
) -> None:
    repo = repository(files)
    session = repo.writable_session("main")
    icechunk.refer_to_kerchunk(session, as_mapping(files, tmp_path), ["temp"], into="some")
    (files / "b.nc").write_bytes(b"\0" * 24)
    os.utime(files / "b.nc", (2e9, 2e9))
    array = zarr.open_array(session.store, path="some/temp", mode="r")
    np.testing.assert_array_equal(array[:2], TEMPERATURES[:2])
    with pytest.raises(icechunk.VirtualChunkError):
        array[2:]
    elsewhere = {**refs(files), "temp/0.0": ["file:///etc/passwd", 0, 24]}
    with pytest.raises(icechunk.VirtualAccessDeniedError):
        icechunk.refer_to_kerchunk(repo.writable_session("main"), elsewhere, ["temp"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"temp/.zarray": described(TEMPERATURES, [2, 3], compressor={"id": "grib"})}, "'grib'"),
        ({"temp/.zarray": described(TEMPERATURES, [2, 3], order="F")}, "Fortran"),
        ({"temp/.zarray": {**described(TEMPERATURES, [2, 3]), "dtype": "|O"}}, "no counterpart"),
        ({"temp/0.0.0": ["file:///x", 0, 1]}, "3 numbers"),
        ({"temp/0.0": ["{{gone}}/x", 0, 1]}, "template 'gone'"),
        ({"temp/0.0": ["{{f(a=1)}}", 0, 1]}, "not a plain name"),
        ({"temp/x": ["file:///x", 0, 1]}, "neither a document nor a chunk"),
    ],
)
def test_what_cannot_be_referred_to_is_named(
    changes: dict[str, Any], reason: str, files: Path
) -> None:
    session = repository(files).writable_session("main")
    given = {**refs(files), "temp/0.0": [f"{files}/a.nc", 4, 24], **changes}
    with pytest.raises(icechunk.IcechunkError, match=reason):
        icechunk.refer_to_kerchunk(session, given)
    assert not session.has_uncommitted_changes


def test_arrays_that_are_there_are_not_touched(files: Path, tmp_path: Path) -> None:
    session = repository(files).writable_session("main")
    icechunk.refer_to_kerchunk(session, as_mapping(files, tmp_path))
    with pytest.raises(icechunk.AlreadyExistsError, match="`into`"):
        icechunk.refer_to_kerchunk(session, as_mapping(files, tmp_path))
    assert icechunk.refer_to_kerchunk(session, as_mapping(files, tmp_path), into="again") == 4


def test_what_is_no_reference_set_is_told(tmp_path: Path) -> None:
    session: Any = None
    (tmp_path / "x.json").write_text("[]")
    for given in (tmp_path / "x.json", tmp_path, tmp_path / "none.json"):
        with pytest.raises(icechunk.InvalidInputError, match=given.name):
            icechunk.refer_to_kerchunk(session, given)
    with pytest.raises(icechunk.UnsupportedError, match="gen"):
        icechunk.refer_to_kerchunk(session, {"version": 1, "gen": [{}], "refs": {}})
