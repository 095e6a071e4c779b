"""What importing costs, and that the import contracts really refuse what they forbid."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_icechunk"
ENGINE = {
    "api", "browser", "engine", "error_kinds", "exceptions", "spark", "testing", "xarray_backend",
}  # fmt: skip
COSTLY = ["boto3", "numpy", "pyspark", "zarr", "zstandard"]

# Imports the modules one after the other and notes the unwanted packages each is the first to bring
# in. Airflow itself loads zstandard; it is forgotten at the beginning, to notice a new import.
PROBE = """
import importlib, json, sys
prepare, modules, unwanted = json.loads(sys.argv[1])
for name in prepare:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] in unwanted]:
    del sys.modules[name]
seen, culprits = set(), {}
for name in modules:
    importlib.import_module(name)
    if found := {name for name in unwanted if name in sys.modules} - seen:
        culprits[name] = sorted(found)
        seen |= found
print(json.dumps(culprits))
"""


def modules_of(part: Path) -> list[str]:
    files = [part] if part.is_file() else sorted(part.rglob("*.py"))
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def modules(*, core: bool) -> list[str]:
    parts = sorted((ROOT / PACKAGE).iterdir())
    chosen = (
        part
        for part in parts
        if (part.suffix == ".py" or (part / "__init__.py").exists())
        and (part.stem in ENGINE) == core
    )
    return [name for part in chosen for name in modules_of(part)]


def culprits(
    home: Path, prepare: list[str], names: list[str], unwanted: list[str]
) -> dict[str, list[str]]:
    environment = os.environ | {"AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([prepare, names, unwanted])],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, list[str]] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_importing_the_airflow_layer_loads_no_costly_package(tmp_path: Path) -> None:
    names = modules(core=False)
    assert {PACKAGE, f"{PACKAGE}.get_provider_info", f"{PACKAGE}.operators"} <= set(names)
    assert culprits(tmp_path, ["airflow.sdk"], names, COSTLY) == {}


def test_the_door_loads_nothing_before_a_name_is_used(tmp_path: Path) -> None:
    unwanted = [*COSTLY, "botocore", "obstore", "urllib3", "yaml"]
    assert culprits(tmp_path, [], [f"{PACKAGE}.api"], unwanted) == {}


def test_the_engine_loads_clients_only_when_it_connects(tmp_path: Path) -> None:
    names = [f"{PACKAGE}.engine.repository", f"{PACKAGE}.engine.storage.constructors"]
    clients = ["boto3", "botocore", "obstore", "pyspark", "urllib3", "zarr"]
    assert culprits(tmp_path, [], names, clients) == {}


def test_importing_the_engine_loads_no_airflow(tmp_path: Path) -> None:
    names = modules(core=True)
    assert {f"{PACKAGE}.engine.format", f"{PACKAGE}.engine.repository"} <= set(names)
    assert culprits(tmp_path, [], names, ["airflow"]) == {}


def test_the_probe_names_the_module_that_imports_too_much(tmp_path: Path) -> None:
    found = culprits(tmp_path, [], ["json", f"{PACKAGE}.engine.format.chunk_refs"], COSTLY)
    assert found == {f"{PACKAGE}.engine.format.chunk_refs": ["numpy"]}


INTRUDERS = [
    ("engine.format", "import {package}.engine.storage.base", "Rooms of the engine"),
    ("engine.storage", "import {package}.engine.format.ids", "Rooms of the engine"),
    ("engine.tree", "import {package}.engine.commit.commit", "Rooms of the engine"),
    ("engine.commit", "import {package}.hooks", "Layers"),
    ("hooks", "import {package}.operators", "Layers"),
    ("engine.pipelines", "import airflow.sdk", "Airflow stays outside"),
    ("engine.format", "import time", "The format does no IO"),
    ("engine.commit", "import boto3", "One room per library"),
    ("operators", "import zarr", "One room per library"),
    ("hooks", "import pyspark", "One room per library"),
]
"""A part of the package, a line that it must not contain, and the contract that forbids it."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the linter says of each contract when all of them are broken at once."""
    folder = tmp_path_factory.mktemp("intruders")
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for number, (part, line, _) in enumerate(INTRUDERS):
        intruder = folder.joinpath(PACKAGE, *part.split("."), f"intruder_{number}.py")
        intruder.write_text(line.format(package=PACKAGE) + "\n")
    command = Path(sys.executable).with_name("lint-imports")
    answer = subprocess.run(
        [str(command), "--no-cache", "--no-logo"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode != 0, answer.stdout + answer.stderr
    # A summary of all contracts, then for each broken one its name, underlined, and its imports.
    parts = re.split(r"^(.+)\n-{3,}$", answer.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("number", range(len(INTRUDERS)))
def test_an_import_across_the_layers_breaks_its_contract(
    broken: dict[str, str], number: int
) -> None:
    part, _, contract = INTRUDERS[number]
    told = "".join(text for name, text in broken.items() if name.startswith(contract))
    assert f"{PACKAGE}.{part}.intruder_{number} " in told
