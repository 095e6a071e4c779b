"""The public doors: what a caller handles is exported, and the pages go through them alone."""

import ast
import inspect
import re
import subprocess
import sys
import typing
from collections import defaultdict
from pathlib import Path

import pytest

import airflow_provider_icechunk.api as api
import airflow_provider_icechunk.spark as spark
from airflow_provider_icechunk import exceptions

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_icechunk"
DOORS = {"api": api, "spark": spark}
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

OPAQUE = {"Storage", "Collection", "IcechunkStore", "IcechunkSource", "Fragment"}
"""Classes that a caller passes on; their methods are for the engine, Zarr or Spark."""
INNER = {
    # The engine behind a repository or session, and what simulations put in its place.
    "Engine", "Core", "World", "WorkingTree", "VirtualReader", "Tenancy", "Snapshot", "ChangeSet",
    "ForkResult",
    # How a public value is stored, or made of what is stored.
    "Status", "Virtual", "Generation", "ResolvedConfig", "RepoUpdate", "OperationsEntry", "Link",
    # What conditions consist of; callers build them with the methods of the condition.
    "AllOf", "Always", "AnyOf", "NameMatches", "Never", "NumRefs", "PathMatches",
    # What plans and pictures hold for the one who carries them out or draws them.
    "JobFiles", "Listing", "Reachable", "UnfinishedFiles", "Row", "Commit", "PlannedArray",
    "Series", "ForeignFile",
    # What a job does with the rows of a frame; `write_chunks` and `write_dataframe` bring theirs.
    "FrameWork",
    # Keyword arguments spelled out for type checkers.
    "S3CredentialArguments",
}  # fmt: skip


def inner_types(hint: object) -> set[type]:
    """The classes of this package that a hint consists of."""
    if typing.get_origin(hint) is typing.Literal:
        return set()
    found = set()
    for part in typing.get_args(hint):
        for item in part if isinstance(part, list | tuple) else [part]:
            found |= inner_types(item)
    if isinstance(hint, type) and str(hint.__module__).startswith(PACKAGE):
        found.add(hint)
    return found


def hints_of(thing: typing.Any) -> dict[str, typing.Any]:
    # Names that are imported for type checkers only must be found at the door.
    return typing.get_type_hints(thing, localns={name: getattr(api, name) for name in api.__all__})


def signatures(door: typing.Any) -> typing.Iterator[tuple[str, dict[str, typing.Any]]]:
    for name in door.__all__:
        thing = getattr(door, name)
        if inspect.isfunction(thing):
            yield name, hints_of(thing)
        if not isinstance(thing, type) or name in OPAQUE:
            continue
        fields = {key: hint for key, hint in hints_of(thing).items() if not key.startswith("_")}
        yield name, fields
        for member, value in inspect.getmembers_static(thing):
            plain = getattr(value, "__func__", getattr(value, "fget", value))
            ours = inspect.isfunction(plain) and str(plain.__module__).startswith(PACKAGE)
            if ours and not member.startswith("_"):
                yield f"{name}.{member}", hints_of(inspect.unwrap(plain))


def test_the_whole_tree_of_errors_is_exported_under_its_own_names() -> None:
    errors = [
        error for error in vars(exceptions).values()
        if isinstance(error, type) and issubclass(error, exceptions.IcechunkError)
    ]  # fmt: skip
    assert len(errors) > 15
    assert [error for error in errors if getattr(api, error.__name__, None) is not error] == []
    assert api.Kind is exceptions.Kind


@pytest.mark.parametrize("door", DOORS)
def test_dir_shows_every_name_and_every_name_is_there(door: str) -> None:
    module = DOORS[door]
    assert set(dir(module)) == set(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module._LATE) <= set(module.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        module.nothing_of_this_name  # noqa: B018


def test_type_checkers_see_each_name_where_the_door_gets_it() -> None:
    body = ast.parse(inspect.getsource(api)).body
    shown = next(part.body for part in body if isinstance(part, ast.If))
    seen = {
        alias.asname or alias.name: f"{part.module}.{alias.name}"
        for part in shown
        if isinstance(part, ast.ImportFrom)
        for alias in part.names
    }
    assert {name: f"{PACKAGE}.{home}.{name}" for name, home in api._LATE.items()} == {
        name: home for name, home in seen.items() if name in api.__all__
    }


@pytest.mark.parametrize("door", DOORS)
def test_every_type_in_a_public_signature_is_exported(door: str) -> None:
    exported = {*api.__all__, *DOORS[door].__all__}
    things = [getattr(door, name) for door in (api, DOORS[door]) for name in door.__all__]
    missing = defaultdict(set)
    for where, hints in signatures(DOORS[door]):
        for kind in set().union(*map(inner_types, hints.values())):
            is_there = any(kind is one for one in things)
            if not is_there and kind.__qualname__.split(".")[0] not in exported | INNER:
                missing[kind.__qualname__].add(where)
    assert dict(missing) == {}


def test_naming_the_door_of_spark_loads_no_pyspark() -> None:
    code = f"import sys, {PACKAGE}.spark as door; door.APPLICATION; print('pyspark' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "False"


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def imports(source: str) -> list[tuple[str, str]]:
    """Modules of this package that a text imports from, each with the name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(str(node.module), alias.name) for alias in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == PACKAGE]


def not_for_users(module: str, name: str) -> bool:
    """Whether an import reaches behind the doors and the classes that Airflow people know."""
    doors = ("", ".api", ".dataset", ".spark", ".testing.simulation")
    if module in [f"{PACKAGE}{door}" for door in doors]:
        return False
    room = module.split(".")[1]
    rooms = {
        "assets", "decorators", "hooks", "notifications", "operators", "policies", "sensors",
        "testing", "triggers",
    }  # fmt: skip
    thing = getattr(__import__(module, fromlist=[name]), name, None)
    return room not in rooms or thing is None or getattr(thing, "__module__", module) != module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_import_only_what_is_public(page: Path) -> None:
    for block in code_blocks(page.read_text()):
        assert [one for one in imports(block) if not_for_users(*one)] == []


@pytest.mark.parametrize("dag", sorted((ROOT / "dags").glob("*.py")), ids=lambda dag: dag.stem)
def test_example_dags_import_only_what_is_public(dag: Path) -> None:
    assert [one for one in imports(dag.read_text()) if not_for_users(*one)] == []


def test_an_import_from_within_is_noticed() -> None:
    assert not_for_users(f"{PACKAGE}.exceptions", "Kind")
    assert not not_for_users(f"{PACKAGE}.operators.commit", "IcechunkCommitOperator")
