"""The package as a zip for executors, which then run exactly the driver's release of it."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import airflow_provider_icechunk

_EPOCH = (1980, 1, 1, 0, 0, 0)


def zipped_package(folder: Path | None = None) -> Path:
    """Write the package as a zip into a folder (a temporary one by default) and return its path.

    It holds source files alone and no times, so the same release gives the same bytes.
    """
    root = Path(airflow_provider_icechunk.__file__).parent
    where = Path(tempfile.mkdtemp(prefix="icechunk-")) if folder is None else folder
    target = where / f"{root.name}-{airflow_provider_icechunk.__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*.py")):
            name = f"{root.name}/{file.relative_to(root).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes())
    return target
