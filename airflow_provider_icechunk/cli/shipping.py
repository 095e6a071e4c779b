"""`ship`: this package, and its requirements, for machines where nothing can be installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import render
from .screen import Report


def ship(args: argparse.Namespace) -> Report:
    """Write the zip, and report what else the executors must have."""
    from airflow_provider_icechunk.engine.workers.shipping import ship as write

    shipped = write(Path(args.output), with_needs=args.with_needs)
    lines = [render.line(f"{shipped.path}: {shipped.size} bytes, the same for the same versions")]
    lines += [render.line(f"  contains {name}") for name in shipped.contained]
    lines += [render.line(f"  executors need {name}") for name in shipped.needed]
    return Report(
        {
            "path": str(shipped.path),
            "bytes": shipped.size,
            "contained": list(shipped.contained),
            "needed": list(shipped.needed),
        },
        lines,
    )
