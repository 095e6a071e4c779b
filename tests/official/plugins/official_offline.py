"""A pytest plugin for the official suites: leaves out tests that need servers which are not here.

A test is left out if it, or a function or fixture of its module that it uses, names a bucket on the
internet or a server other than the one for S3; otherwise each would wait for all its retries.
Generated examples are few and always the same.
"""

import ast
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SERVERS = ("icechunk-public-data", "noaa-", "earthmover-", "s3.amazonaws.com", "localhost:4202")

settings.register_profile(
    "short",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=10,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a server."""
    reaching: dict[Path, set[str]] = {}
    left_out = []
    for item in items:
        if item.path not in reaching:
            reaching[item.path] = _reaching_servers(item.path)
        owner = getattr(getattr(item, "cls", None), "__name__", None)
        used = {getattr(item, "originalname", item.name), owner, *getattr(item, "fixturenames", ())}
        if used & reaching[item.path]:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        kept = set(map(id, items)) - set(map(id, left_out))
        items[:] = [item for item in items if id(item) in kept]


def _reaching_servers(path: Path) -> set[str]:
    """Names of top-level definitions that reach a server, directly or through each other."""
    tree = ast.parse(path.read_text())
    parts = {
        node.name: ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    found = {name for name, text in parts.items() if any(s in text for s in _SERVERS)}
    while True:
        more = {
            name
            for name, text in parts.items()
            if name not in found and any(_uses(text, other) for other in found)
        }
        if not more:
            return found
        found |= more


def _uses(text: str, name: str) -> bool:
    nodes = list(ast.walk(ast.parse(text)))
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes) or any(
        isinstance(node, ast.arg) and node.arg == name for node in nodes
    )
