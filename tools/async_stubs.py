"""Write engine/async_twins.pyi: the `*_async` methods for type checkers.

The twins are made at run time, so their signatures are copied from the methods they run. The file
is a module of its own, from which the classes inherit for type checkers only. A stub beside each
module would replace it for mypy and hide its bodies and private names.

    python -m tools.async_stubs
"""

import ast
import inspect
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from airflow_provider_icechunk import api

TARGET = Path(__file__).resolve().parent.parent / "airflow_provider_icechunk/engine/async_twins.pyi"
HEADER = (
    "# The `*_async` twins of public methods, for type checkers.\n"
    "# Made by `python -m tools.async_stubs` from the methods they run; a test compares.\n"
)
Imports = dict[str, set[str]]


def classes_with_twins() -> list[type]:
    """The exported classes that define twins themselves."""
    found = (getattr(api, name) for name in api.__all__)
    return sorted(
        (thing for thing in found if isinstance(thing, type) and any(twins(thing))),
        key=lambda cls: cls.__name__,
    )


def twins(cls: type) -> Iterator[tuple[str, bool, Callable[..., object]]]:
    """The name of each twin, whether it is called on the class, and the method it runs."""
    for name, value in sorted(vars(cls).items()):
        function = getattr(value, "__func__", value)
        if name.endswith("_async") and hasattr(function, "__wrapped__"):
            yield name, isinstance(value, classmethod), inspect.unwrap(function)


def stub() -> str:
    """The text of the stub."""
    imports: Imports = defaultdict(set)
    parts = []
    for cls in classes_with_twins():
        lines = [f"class {cls.__name__}Twins:"]
        for name, on_class, function in twins(cls):
            lines += ["    @classmethod"] if on_class else []
            lines.append(
                f"    async def {name}{_signature(function, imports, on_class=on_class)}: ..."
            )
        parts.append("\n".join(lines) + "\n")
    head = "\n".join(
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(imports.items())
    )
    return HEADER + "\n" + head + "\n\n" + "\n".join(parts)


def _signature(function: Callable[..., object], imports: Imports, *, on_class: bool) -> str:
    """Parameters and result as source; annotations are texts already."""
    signature = inspect.signature(function)
    parts, star = [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or one.kind in (one.VAR_POSITIONAL, one.KEYWORD_ONLY)
        prefix = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(one.kind.name, "")
        hint = "" if one.annotation is one.empty else f": {one.annotation}"
        default = "" if one.default is one.empty else " = ..."
        parts.append(f"{prefix}{one.name}{hint}{default}")
        if hint:
            _import_names(one.annotation, function.__module__, imports)
    if on_class and parts[:1] != ["cls"]:
        parts.insert(0, "cls")
    _import_names(signature.return_annotation, function.__module__, imports)
    return f"({', '.join(parts)}) -> {signature.return_annotation}"


def _import_names(hint: str, module: str, imports: Imports) -> None:
    """Note where the names in an annotation come from."""
    names = {node.id for node in ast.walk(ast.parse(hint)) if isinstance(node, ast.Name)}
    known = _imported_by(module)
    for name in names - set(dir(import_module("builtins"))):
        source, original = known.get(name, (module, name))
        imports[source] |= {original if original == name else f"{original} as {name}"}


@cache
def _imported_by(module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports, even only for type checkers, and their origin."""
    source = Path(str(sys.modules[module].__file__))
    package = module if source.stem == "__init__" else module.rpartition(".")[0]
    found = {}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                found[alias.asname or alias.name] = (origin, alias.name)
    return found


def formatted(text: str) -> str:
    """The text as formatted by this project's formatter and linter."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    for command in (["check", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        answer = subprocess.run(  # noqa: S603
            [ruff, *command, "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = answer.stdout
    return text


def main() -> int:
    """Write the stub."""
    TARGET.write_text(formatted(stub()))
    print(TARGET.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
