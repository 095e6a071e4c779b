"""Rules of the source that no linter knows, read from the syntax trees of the package."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from airflow_provider_icechunk.engine.format.generation import Capabilities, Generation

PACKAGE = Path(__file__).resolve().parent.parent / "airflow_provider_icechunk"
ROOMS_OF_GENERATIONS = {"format", "refs", "migration", "operations.py"}
"""Where code may be about a single generation: the operations log is one of generation `2`."""


@cache
def sources() -> dict[Path, ast.Module]:
    return {
        path.relative_to(PACKAGE): ast.parse(path.read_text(), str(path))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@pytest.fixture(scope="module", autouse=True)
def forget_sources() -> Iterator[None]:
    """Leave no million nodes behind, through which Python's garbage collector would go again."""
    yield
    sources.cache_clear()


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def is_generation(node: ast.AST | None) -> bool:
    """Whether an expression is a member of `Generation`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in Generation.__members__
        and isinstance(node.value, ast.Name | ast.Attribute)
        and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr) == "Generation"
    )


def of_one_generation(trees: dict[Path, ast.Module]) -> set[str]:
    """Names of the classes that say which generation they are of, as codecs and refs do."""
    return {
        one.name
        for tree in trees.values()
        for one in classes(tree)
        for line in one.body
        if isinstance(line, ast.Assign | ast.AnnAssign) and is_generation(line.value)
    }


def names_a_generation(node: ast.AST, bound: set[str]) -> bool:
    """Whether one node of a tree singles out a generation."""
    match node:
        case ast.Attribute() if is_generation(node):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in bound:
            return True
        case ast.alias(name=name) if name in bound:
            return True
        case ast.Call(func=ast.Name(id="Generation"), args=[ast.Constant()]):
            return True
        case ast.Compare(left=left, comparators=others):
            return any(
                re.search(r"\bgeneration\b", ast.unparse(one)) for one in (left, *others)
            ) and any(
                isinstance(one, ast.Constant) and isinstance(one.value, str)
                for side in (left, *others)
                for one in ast.walk(side)
            )
    return False


def mentions(trees: dict[Path, ast.Module]) -> list[str]:
    bound = of_one_generation(trees)
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        if not ROOMS_OF_GENERATIONS & set(path.parts)
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.alias) and names_a_generation(node, bound)
    ]


def test_code_outside_the_rooms_of_the_format_asks_for_capabilities_not_for_a_generation() -> None:
    found = mentions(sources())
    assert not found, "ask `generation.<capability>` instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "newest = engine.generation is Generation.V2",
        "early = generation in (Generation.DRAFT, base.Generation.ALPHA1)",
        "v2 = isinstance(refs, V2Thing)",
        "from somewhere import V2Thing",
        "from somewhere import V2Thing as Thing",
        "same = generation == '2'",
        "same = engine.generation.value in ('1', '2')",
        "chosen = Generation('2')",
    ],
)
def test_the_rule_about_generations_catches(line: str) -> None:
    trees = {
        Path("format/thing.py"): ast.parse("class V2Thing:\n    generation = Generation.V2"),
        Path("spark/thing.py"): ast.parse(line),
    }
    assert len(mentions(trees)) >= 1
    assert not mentions({Path("format/x.py"): trees[Path("spark/thing.py")]})


@pytest.mark.parametrize(
    "line",
    [
        "chosen = Generation(name)",
        "if generation.keeps_logs: pass",
        "if found is not generation: pass",
        "if unit.generation != engine.generation.value: pass",
    ],
)
def test_the_rule_about_generations_lets_pass(line: str) -> None:
    assert not mentions({Path("spark/thing.py"): ast.parse(line)})


def test_every_generation_answers_every_question() -> None:
    columns = Capabilities.__annotations__
    assert len(columns) > 10
    for generation in Generation:
        assert all(hasattr(generation, column) for column in columns)
    assert [one.value for one in Generation if one.is_newest] == ["2"]


STORED_SPELLING = {"format", "refs"}
"""Folders in which ids become names of files and parts of stored documents."""
STORED_SPELLING_FILES = {"work_unit.py", "coordinator.py"}
"""Files with documents of their own: the work unit, and what a staged snapshot says of itself."""


def test_ids_become_text_in_one_place_and_are_read_in_one_place() -> None:
    """A message that used base 32 would name a snapshot of `draft` as no command accepts it."""
    primitives = {"encode_base32", "decode_base32", "decode_object_id"}
    found = [
        f"{path}:{node.lineno}: {node.id}"
        for path, tree in sources().items()
        if not STORED_SPELLING & set(path.parts) and path.name not in STORED_SPELLING_FILES
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in primitives
    ]
    assert not found, "use `format_id` and `parse_id` instead:\n" + "\n".join(found)


def qualified(body: list[ast.stmt], inside: str = "") -> Iterator[str]:
    """Names of classes, nested ones with the class they belong to: `Credentials.S3`."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield inside + node.name
            yield from qualified(node.body, f"{inside}{node.name}.")


def repeated(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    homes: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for name in qualified(tree.body):
            homes.setdefault(name, []).append(str(path))
    return {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_no_class_name_means_two_things() -> None:
    assert not repeated(sources())


def test_the_rule_about_class_names_catches_a_second_one_but_not_a_nested_one() -> None:
    first = ast.parse("class A:\n    class S3: ...")
    second = ast.parse("class S3:\n    class A: ...")
    assert not repeated({Path("a.py"): first, Path("b.py"): second})
    assert repeated({Path("a.py"): first, Path("c.py"): first}).keys() == {"A", "A.S3"}


def test_nothing_beside_the_spark_application_hides_a_standard_module() -> None:
    """`spark-submit` runs `main.py` as a script, which puts its folder first on Python's path."""
    beside = {path.stem for path in (PACKAGE / "spark").iterdir()}
    assert not beside & sys.stdlib_module_names


def hopes(tree: ast.AST, *, polling: bool = False) -> Iterator[int]:
    """Lines that sleep a while and hope that it was enough: neither in a loop that asks, nor for
    minutes, as a process does that is going to be killed."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"),
                args=[ast.Constant(value=float() | int() as seconds)],
            ) if 0 < seconds < 60 and not polling:
                yield node.lineno
        yield from hopes(node, polling=polling or isinstance(node, ast.While))


def test_no_test_sleeps_and_hopes() -> None:
    """Tests wait for an event, or ask again until a condition holds."""
    for path in sorted((PACKAGE.parent / "tests").rglob("*.py")):
        text = path.read_text()
        if re.search(r"^import (time|asyncio)$", text, re.MULTILINE):
            found = [f"{path.name}:{line}" for line in hopes(ast.parse(text))]
            assert found == []


def test_a_sleep_that_hopes_is_noticed() -> None:
    assert list(hopes(ast.parse("start()\ntime.sleep(0.5)\nassert done"))) == [2]
    assert list(hopes(ast.parse("while not done():\n    time.sleep(0.5)"))) == []
    assert list(hopes(ast.parse("time.sleep(600)"))) == []
