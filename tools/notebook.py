"""Run the notebooks of the documentation, and keep what their cells show.

    python -m tools.notebook    run docs/*.ipynb again, with their outputs

A Jupyter kernel would be another dependency; these cells are plain Python, run one after another
in a folder that is empty before and gone afterwards.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
_KINDS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells show now; an error names the cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, cell in enumerate(notebook["cells"]):
                if cell["cell_type"] == "code":
                    cell = {**cell, "outputs": _run_cell(cell, names, f"cell {number}")}
                cells.append(cell)
        finally:
            os.chdir(before)
    return {**notebook, "cells": cells}


def _run_cell(cell: dict[str, Any], names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    tree = ast.parse("".join(cell["source"]), where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)  # noqa: S102 - it is our own notebook
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        for kind, name in _KINDS.items():
            if hasattr(value, name):
                data[kind] = getattr(value, name)().splitlines(keepends=True)
        outputs.append(
            {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None}
        )
    return outputs


def as_page(notebook: dict[str, Any]) -> str:
    """The notebook as a page in MyST."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            rich = next((data[kind] for kind in _KINDS if kind in data), None)
            if rich is not None:
                parts.append(f"````{{raw}} html\n{''.join(rich)}\n````")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Run every notebook and rewrite it."""
    for path in sorted(DOCS.glob("*.ipynb")):
        made = run(json.loads(path.read_text()))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
