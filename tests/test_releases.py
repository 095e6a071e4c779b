"""What holds for every release of Airflow, Spark and Zarr, and the table that says so."""

import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

from airflow_provider_icechunk import compat
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    ConflictError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from airflow_provider_icechunk.hooks import form
from airflow_provider_icechunk.policies import retry
from airflow_provider_icechunk.spark import releases
from tools.matrix import checks, report, rows

ROOT = Path(__file__).resolve().parent.parent
WITHOUT = """
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        for one in {absent!r}:
            if f"{{name}}.".startswith(f"{{one}}."):
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=one)
sys.meta_path.insert(0, Absent())
"""


def without(absent: tuple[str, ...], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program where some packages cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=absent) + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_part_that_needs_airflow_says_what_to_install() -> None:
    answer = without(("airflow",), "import airflow_provider_icechunk.operators.commit")
    last = answer.stderr.splitlines()[-1]
    assert 'pip install "airflow-provider-icechunk[airflow]"' in last, answer.stderr


def test_operators_that_submit_say_which_provider_to_install() -> None:
    absent = ("airflow.providers.apache.spark.operators",)
    answer = without(absent, "import airflow_provider_icechunk.operators.spark")
    last = answer.stderr.splitlines()[-1]
    assert "pip install apache-airflow-providers-apache-spark" in last, answer.stderr


@pytest.mark.parametrize("absent", ["pyspark", "pyarrow"])
def test_a_function_for_spark_says_what_to_install(absent: str) -> None:
    answer = without((absent,), "from airflow_provider_icechunk.spark import write_dataframe")
    last = answer.stderr.splitlines()[-1]
    assert f"needs {absent}" in last, answer.stderr
    assert 'pip install "airflow-provider-icechunk[spark]"' in last


def test_the_engine_and_the_command_line_need_neither_airflow_nor_spark(tmp_path: Path) -> None:
    program = f"""
from airflow_provider_icechunk.cli.run import main
assert main(["init", {str(tmp_path / "new")!r}]) == 0
assert main(["log", {str(tmp_path / "new")!r}]) == 0
"""
    answer = without(("airflow", "pyspark", "fastapi", "jinja2"), program)
    assert answer.returncode == 0, answer.stderr
    assert "Repository initialized" in answer.stdout


def test_importing_the_api_leaves_slow_packages_for_later() -> None:
    program = """
import sys
import airflow_provider_icechunk.api
slow = {"boto3", "botocore", "zarr", "pydantic", "obstore"}
print(sorted(slow & set(sys.modules)))
"""
    assert without((), program).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (AccessDeniedError("no"), True),
        (NotFoundError("no"), True),
        (InvalidInputError("no"), True),
        (UnsupportedError("no"), True),
        (StorageError("slow"), False),
        (ConflictError("lost"), False),
        (IcechunkError("anything"), False),
        (ValueError("of others"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_decorated_task_fails_at_once_where_a_retry_would_fail_again(
    error: Exception, permanent: bool
) -> None:
    @retry.fail_on_permanent_errors
    def task() -> None:
        raise error

    expected = compat.AirflowFailException if permanent else type(error)
    with pytest.raises(expected):
        task()


def test_the_policy_and_the_decorator_know_the_same_errors() -> None:
    policy = retry.icechunk_retry_policy()
    for kind in (AccessDeniedError, NotFoundError, StorageError, InvalidInputError):
        rule = next(
            rule for rule in policy.rules if any(issubclass(kind, k) for k in rule.exception)
        )
        assert (rule.action.value == "fail") == retry.is_permanent(kind("x")), kind


def test_an_airflow_without_policies_is_told_and_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "has_retry_policies", lambda: False)
    with pytest.warns(UserWarning, match="has no retry policies.*fail_on_permanent_errors"):
        assert retry.icechunk_retry_policy() is None


def test_old_forms_have_the_fields_that_new_ones_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    class Field:
        def __init__(self, **options: object) -> None:
            self.options = options

    class Forms:
        BooleanField = type("BooleanField", (Field,), {})
        PasswordField = type("PasswordField", (Field,), {})
        StringField = type("StringField", (Field,), {})
        Optional = object

    monkeypatch.setattr(form, "import_module", lambda _: Forms)
    made = {name: type(field).__name__ for name, field in form.form_widgets().items()}
    declared = form._declared()["conn-fields"]
    assert set(made) == set(declared)
    assert (made["session_token"], made["allow_http"], made["region"]) == (
        "PasswordField", "BooleanField", "StringField",
    )  # fmt: skip
    assert form.field_behaviour()["relabeling"]["host"] == "Bucket, container or directory"


def test_two_releases_of_pyspark_in_one_folder_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"pyspark": "4.3.0", "pyspark-client": "4.2.0"}
    monkeypatch.setattr(releases, "version", lambda name: installed[name])
    with pytest.raises(
        UnsupportedError, match=r"pyspark 4\.3\.0 and pyspark-client 4\.2\.0.*==4\.3\.0"
    ):
        releases.refuse_mixture()
    installed["pyspark-client"] = "4.3.0"
    releases.refuse_mixture()


def test_a_client_alone_says_what_it_cannot_do() -> None:
    program = """
import sys, types
import pyspark
del pyspark.SparkContext
from airflow_provider_icechunk.spark.releases import spark_context
spark_context()
"""
    last = without((), program).stderr.splitlines()[-1]
    assert "only pyspark-client is installed" in last
    assert "remote" in last


def test_a_session_of_another_release_that_is_not_understood_names_both() -> None:
    from airflow_provider_icechunk import __version__
    from airflow_provider_icechunk.engine.pipelines.description import parse_session

    session = {"repository": "r", "a_new_field": 1, "release": "9.9.9"}
    for value in (session, json.dumps(session)):
        with pytest.raises(InvalidInputError, match=rf"Release '9\.9\.9'.* this is {__version__}"):
            parse_session(value)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError) as refused:
        parse_session(session | {"release": __version__})
    assert "Release" not in str(refused.value)


def test_what_is_shipped_is_the_same_bytes_and_can_be_imported(tmp_path: Path) -> None:
    from airflow_provider_icechunk.engine.workers.shipping import ship

    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    shipped = ship(first, with_needs=True)
    ship(second, with_needs=True)
    assert first.read_bytes() == second.read_bytes()
    assert {name.split("==")[0] for name in shipped.contained} >= {
        "airflow-provider-icechunk",
        "zarr",
    }
    needed = {name.split("==")[0] for name in shipped.needed}
    assert {"numpy", "obstore", "botocore", "zstandard"} <= needed
    assert "apache-airflow" not in needed
    entries = zipfile.ZipFile(first).infolist()
    assert sum(one.compress_size for one in entries) < sum(one.file_size for one in entries) / 2
    names = [one.filename for one in entries]
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    program = (
        "import zarr, airflow_provider_icechunk.api as a; print(zarr.__file__); print(a.__file__)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(first)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(line.startswith(str(first)) for line in answer.stdout.splitlines()), answer.stdout


def test_every_row_has_pins_of_its_own_and_checks_that_exist() -> None:
    matrix = rows.load()
    assert {name.partition("-")[2] for name in matrix.rows if name.startswith("airflow")} == {
        "3.0", "3.1", "3.2", "3.3",
    }  # fmt: skip
    for row in matrix.rows.values():
        assert set(row.checks) <= set(checks.CHECKS), row.name
        pins = row.pins.read_text()
        assert "://" not in pins
        for fixed in row.fixed:
            if "==" in fixed:
                assert f"{fixed}\n" in pins, f"pin {row.name} again"


def test_the_page_is_made_of_the_results_and_shows_failures() -> None:
    matrix = rows.load()
    assert report.PAGE.read_text() == report.page(matrix, report.read())
    row = matrix.rows["airflow-3.0"]
    seen = {row.name: {row.checks[0]: report.Seen(False, "3 failed, 4 passed")}}
    shown = report.page(matrix, seen)
    assert "**fails**: 3 failed, 4 passed" in shown
    assert "not run" in shown


def test_a_summary_has_the_counts_and_no_times() -> None:
    text = "tests/x.py ...\n===== 2 failed, 3 passed, 1 skipped in 12.31s (0:00:12) =====\n"
    assert checks.summary(text) == "2 failed, 3 passed, 1 skipped"
    assert checks.summary("first\nall is there\n") == "all is there"


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results = {"row": {"check": report.Seen(True, "1 passed")}}
    report.write(results, file)
    assert report.read(file) == results
    assert json.loads(file.read_text())["row"]["check"]["passed"] is True


def test_nothing_warns_where_policies_exist() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert retry.icechunk_retry_policy() is not None
