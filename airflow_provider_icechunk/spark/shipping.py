"""The package as a zip for executors, which then run exactly the driver's release of it.

Not every Python that Spark starts gets the zip: the one that plans the batches of a stream runs on
the driver's machine without it. Data sources therefore travel with the place they came from.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def package_root() -> str:
    """What has to be on the path of a Python to find the package: a folder, or the zip."""
    return str(Path(airflow_provider_icechunk.__file__).parents[1])


def arrive(root: str, options: Mapping[str, str]) -> Any:
    """The data source of these options, in a Python that may not know the package yet.

    :param root: where the package was in the Python that sent it.
    """
    import importlib
    import sys

    name = "airflow_provider_icechunk.spark.source"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        sys.path.append(root)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
    return module.IcechunkSource(options)


# Sent as code and not as a name, which could be looked up only where the package is known.
arrive.__module__ = "__main__"
