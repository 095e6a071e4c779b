"""What the pages claim: every test they name exists, and every class of the provider is told."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
import types
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
FILE = re.compile(r"`(tests/[\w/]+(?:\.py)?)`")
TEST = re.compile(r"`(test_\w+)`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """The tests a text names, each with the file that was named last before it."""
    found, file = [], ""
    for match in re.finditer(f"{FILE.pattern}|{TEST.pattern}", text):
        if match[1]:
            file = match[1]
        else:
            found.append((file, match[2]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for name in FILE.findall(text):
        assert (ROOT / name).exists(), name
    for file, name in named_tests(text):
        assert (ROOT / file).is_file(), f"{name} is named without its file"
        assert re.search(rf"\bdef {name}\(", (ROOT / file).read_text()), f"{file} has no {name}"


def claims(page: str) -> list[str]:
    """The items of the lists of a page, and of nothing else."""
    text = (ROOT / "docs" / page).read_text()
    return [
        item.strip() for item in re.findall(r"^- (.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "most"), [("guarantees.md", 6), ("security.md", 6)])
def test_claims_name_the_test_that_proves_them(page: str, most: int) -> None:
    """All but those of sections that name their file once, and of what is not defended."""
    bare = [claim for claim in claims(page) if not FILE.search(claim)]
    assert len(bare) <= most, bare
    assert len(claims(page)) >= 15


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    listed = re.search(r"\{toctree\}.*?\n\n(.*?)```", index, re.DOTALL)
    assert listed is not None
    pages = [*PAGES, *(ROOT / "docs").glob("*.ipynb")]
    assert set(listed[1].split()) == {page.stem for page in pages} - {"index"}


def test_the_notebook_runs_and_its_cells_show_what_is_stored() -> None:
    """But for identities and times, which are others each time."""
    from tools.notebook import run

    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    made = run(notebook)

    def shown(cells: list[dict[str, Any]]) -> str:
        text = json.dumps([one["outputs"] for one in cells if one["cell_type"] == "code"])
        return re.sub(r"[0-9A-Z]{8,20}", "ID", text)

    assert shown(made["cells"]) == shown(notebook["cells"])
    assert "_repr_" not in shown(made["cells"])
    for kind in ("text/html", "image/svg+xml", "text/plain"):
        assert kind in shown(made["cells"])


def inner_imports(text: str) -> list[str]:
    """What a text imports of this package that is neither public nor one of Airflow's folders."""
    named = re.findall(r"^ *(?:from|import) airflow_provider_icechunk\.(\w+)", text, re.MULTILINE)
    public = {"api", "dataset", "spark", "testing"}
    airflow = {"hooks", "notifications", "operators", "policies", "sensors", "triggers"}
    return sorted(set(named) - public - airflow)


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", *(ROOT / "dags").rglob("*.py")], ids=lambda page: page.stem
)
def test_pages_and_example_dags_import_what_is_public(page: Path) -> None:
    assert inner_imports(page.read_text()) == []


def test_an_import_of_an_inner_module_is_noticed() -> None:
    assert inner_imports("    from airflow_provider_icechunk.engine.core import Core") == ["engine"]


def test_every_class_of_the_provider_is_on_a_page() -> None:
    from support.provider_classes import listed

    text = "".join(page.read_text() for page in PAGES)
    for one in listed("hooks", "operators", "sensors", "triggers"):
        if one.__name__ not in (
            "IcechunkTagTrigger",
            "IcechunkNodeTrigger",
            "IcechunkCoverageTrigger",
        ):
            assert f"`{one.__name__}`" in text or f"{one.__name__}(" in text, one.__name__


def test_the_reference_has_every_module_that_airflow_is_told_about() -> None:
    from airflow_provider_icechunk.get_provider_info import get_provider_info

    text = (ROOT / "docs" / "reference.md").read_text()
    written = set(re.findall(r"automodule:: (\S+)", text))
    information = get_provider_info()
    told = {
        module
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in information[kind]
        for module in entry["python-modules"]
    }
    told |= {name.rpartition(".")[0] for name in information["notifications"]}
    assert told - written == set()


def rows(page: str, section: str) -> set[str]:
    """The keys in the first table of a section."""
    text = (ROOT / "docs" / page).read_text().split(f"{section}\n", 1)[1]
    table = re.search(r"^\|.*?(?=^[^|]|\Z)", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    first = [line.split("|")[1] for line in table[0].splitlines()[2:]]
    return {name for cell in first for name in re.findall(r"`(\w+)`", cell)}


def test_the_tables_have_every_key_of_a_dataset_of_arrays_and_of_writes() -> None:
    from dataclasses import fields

    from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
    from airflow_provider_icechunk.engine.arrays.declared import DeclaredArray
    from airflow_provider_icechunk.spark import specification

    for kind in (IcechunkDataset, Variable, Growing, Coordinate):
        names = {one.name for one in fields(kind) if one.init and not one.name.startswith("_")}
        assert rows("datasets.md", f"## `{kind.__name__}`") == names, kind
    assert rows("datasets.md", "## `arrays`") == set(DeclaredArray.model_fields)
    for name in ("FunctionWrite", "ArrayWrite", "FilesWrite", "VirtualWrite"):
        model = getattr(specification, name)
        kind = model.model_fields["kind"].annotation.__args__[0]
        assert rows("spark.md", f"### `{kind}`") == set(model.model_fields), kind


def test_your_own_data_is_the_first_page_after_the_readme() -> None:
    listed = (ROOT / "docs" / "index.md").read_text().split("{toctree}")[1].split()
    assert listed[listed.index("readme") + 1] == "your-own-data"


def test_the_readme_shows_the_example_that_tests_run() -> None:
    readme = (ROOT / "README.md").read_text()
    for file, name in (("icechunk_own_function", "own_function"), ("jobs/weather_jobs", "field")):
        text = (ROOT / f"dags/{file}.py").read_text()
        part = text.split(f"# [START {name}]\n")[1].split(f"# [END {name}]")[0].rstrip()
        assert f"```python\n{part}\n```" in readme, file


BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHOWN = [
    pytest.param(textwrap.dedent(code), id=f"{page.stem}-{number}")
    for page in (*PAGES, ROOT / "README.md")
    for number, (_, code) in enumerate(BLOCK.findall(page.read_text()))
]


@cache
def public() -> dict[str, Any]:
    """What examples call without importing it, since the page did before."""
    from support.provider_classes import listed

    import airflow_provider_icechunk.api as api
    import airflow_provider_icechunk.spark as spark

    found = {name: getattr(module, name) for module in (api, spark) for name in module.__all__}
    return found | {one.__name__: one for one in listed("hooks", "operators", "sensors")}


def imported(tree: ast.Module) -> dict[str, Any]:
    """What an example imports of this package; a name that is not there is an error."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_provider"):
            module = importlib.import_module(str(node.module))
            found |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.startswith("airflow_provider"):
                    found[one.asname or one.name] = importlib.import_module(one.name)
    return found


def called(node: ast.expr, names: dict[str, Any]) -> Any:
    """What an expression names, if it is known here."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = called(node.value, names)
        if isinstance(owner, type | types.ModuleType):
            return getattr(owner, node.attr)
    return None


@pytest.mark.parametrize("code", SHOWN)
def test_an_example_imports_and_calls_what_there_is(code: str) -> None:
    """Its syntax, its imports, and the arguments of each call of ours."""
    tree = ast.parse(code)
    names = public() | imported(tree)
    for node in ast.walk(tree):
        found = called(node.func, names) if isinstance(node, ast.Call) else None
        if found is None or not isinstance(node, ast.Call):
            continue
        if any(isinstance(one, ast.Starred) for one in node.args):
            continue
        given = {one.arg: ... for one in node.keywords if one.arg is not None}
        inspect.signature(found).bind(*node.args, **given)


RUN = ("configuration-0", "formats-0", "formats-1", "formats-2", "README-2", "simulation-0",
       "your-own-data-0")  # fmt: skip


@pytest.mark.parametrize("code", [one for one in SHOWN if one.id in RUN])
def test_an_example_that_needs_no_cluster_and_no_bucket_runs(code: str, tmp_path: Path) -> None:
    """What it reads below `/data` is made here."""
    import numpy as np
    import xarray as xr
    import zarr

    import airflow_provider_icechunk.api as ours

    for name in ("weather", "weather_daily"):
        repository = ours.Repository.create(ours.local_filesystem_storage(str(tmp_path / name)))
        session = repository.writable_session("main")
        days = np.arange("2026-01-01", "2026-01-20", dtype="M8[D]").astype("M8[ns]")
        data = xr.Dataset({"t2m": ("time", np.arange(19.0))}, {"time": days})
        ours.to_icechunk(data, session)
        session.commit("days")
    with zarr.config.set({}):
        exec(compile(code.replace("/data", str(tmp_path)), "example", "exec"), {"__name__": "run"})


@pytest.mark.long
def test_the_reference_has_every_public_name(tmp_path: Path) -> None:
    """Warnings are errors, as they are for `make docs`."""
    import airflow_provider_icechunk.api as api
    import airflow_provider_icechunk.spark as spark

    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    answer = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    page = (tmp_path / "reference.html").read_text()
    for module in (api, spark):
        wanted = [f"{module.__name__}.{name}" for name in module.__all__ if name[0] != "_"]
        assert [name for name in wanted if f'id="{name}"' not in page] == []


def test_the_migration_page_tells_every_official_name_that_is_missing() -> None:
    import icechunk

    import airflow_provider_icechunk.api as ours

    text = (ROOT / "docs" / "migration.md").read_text()
    missing = [name for name in icechunk.__all__ if not hasattr(ours, name)]
    for kind in ("Repository", "Session", "IcechunkStore"):
        mine, theirs = getattr(ours, kind), getattr(icechunk, kind)
        public = [name for name in dir(theirs) if not name.startswith("_")]
        missing += [f"{kind}.{name}" for name in public if not hasattr(mine, name)]
    assert [name for name in missing if f"`{name}`" not in text] == []
