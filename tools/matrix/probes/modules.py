"""Import every module: it works, or the error says what is missing here."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import warnings

import airflow_provider_icechunk

OPTIONAL = {"airflow", "anyio", "fastapi", "pyarrow", "pyspark", "uvicorn"}
"""Packages that an install may lack; the error has to name them."""
LATER = " or later, and PySpark is "
"""How an error says that this release of Spark lacks something."""


def main() -> int:
    """Print what failed for a wrong reason; end with 1 if anything did."""
    warnings.simplefilter("ignore")
    wrong, imported, refused = [], 0, 0
    found = pkgutil.walk_packages(
        airflow_provider_icechunk.__path__, "airflow_provider_icechunk.", onerror=lambda _: None
    )
    for module in found:
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            top = (error.name or "").partition(".")[0]
            absent = top in OPTIONAL and importlib.util.find_spec(top) is None
            if absent or LATER in str(error):
                refused += 1
            else:
                wrong.append(f"{module.name}: {type(error).__name__}: {error}")
        else:
            imported += 1
    print("\n".join([*wrong, f"{imported} modules imported, {refused} name what is missing"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
