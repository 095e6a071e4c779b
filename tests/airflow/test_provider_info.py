"""The metadata Airflow reads: complete, true, and equal to what people edit."""

import importlib
import json
import re
from pathlib import Path

import airflow
import jsonschema
import pytest
import yaml
from support.provider_classes import listed

import airflow_provider_icechunk
from airflow_provider_icechunk.assets.icechunk import (
    convert_asset_to_openlineage,
    create_asset,
    sanitize_uri,
)
from airflow_provider_icechunk.get_provider_info import get_provider_info
from airflow_provider_icechunk.hooks.connection import IcechunkConnection
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

SCHEMAS = Path(airflow.__file__).parent
AUTHORED = yaml.safe_load(
    (Path(airflow_provider_icechunk.__file__).parent / "provider.yaml").read_text()
)
ONLY_AUTHORED = {"state", "lifecycle", "source-date-epoch", "versions"}
INFO = get_provider_info()


def schema(name: str) -> dict[str, object]:
    return json.loads((SCHEMAS / name).read_text())


def test_the_dictionary_is_the_authored_file() -> None:
    expected = {key: value for key, value in AUTHORED.items() if key not in ONLY_AUTHORED}
    expected["description"] = expected["description"].strip()
    assert expected == INFO


def test_airflow_accepts_the_dictionary_and_the_authored_file() -> None:
    jsonschema.validate(INFO, schema("provider_info.schema.json"))
    jsonschema.validate(AUTHORED, schema("provider.yaml.schema.json"))


def test_the_package_name_is_the_one_of_the_distribution() -> None:
    # Any other name takes down the discovery of every provider of an installation.
    assert INFO["package-name"] == "airflow-provider-icechunk"
    assert AUTHORED["versions"][0] == airflow_provider_icechunk.__version__


@pytest.mark.parametrize("kind", ["hooks", "operators", "sensors", "triggers"])
def test_every_listed_module_is_there_and_every_module_is_listed(kind: str) -> None:
    listed = {module for entry in INFO[kind] for module in entry["python-modules"]}
    for module in listed:
        importlib.import_module(module)
    folder = Path(airflow_provider_icechunk.__file__).parent / kind
    defines = re.compile(r"^class Icechunk\w*(Hook|Operator|Sensor|Trigger)\(", re.MULTILINE)
    holders = {
        f"airflow_provider_icechunk.{kind}.{file.stem}"
        for file in folder.glob("*.py")
        if file.stem != "base" and defines.search(file.read_text())
    }
    assert holders == listed


def test_the_form_offers_exactly_the_extras_that_the_connection_knows() -> None:
    fields = set(INFO["connection-types"][0]["conn-fields"])
    assert fields == set(IcechunkConnection.model_fields) - {"host", "login", "password"}


def test_the_connection_type_names_the_hook() -> None:
    entry = INFO["connection-types"][0]
    assert entry["connection-type"] == IcechunkHook.conn_type
    assert entry["hook-name"] == IcechunkHook.hook_name
    module, _, name = entry["hook-class-name"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is IcechunkHook


def test_every_class_and_function_that_is_named_is_there() -> None:
    decorators, (uris,) = INFO["task-decorators"], INFO["asset-uris"]
    named = [one["class-name"] for one in decorators]
    named += [*INFO["notifications"], *INFO["cli"]]
    named += [uris[key] for key in ("handler", "factory", "to_openlineage_converter")]
    for path in named:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), path


def test_airflow_discovers_what_is_declared() -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    manager, runtime = ProvidersManager(), ProvidersManagerTaskRuntime()
    assert "airflow-provider-icechunk" in manager.providers
    assert runtime.hooks["icechunk"].hook_class_name.endswith(".IcechunkHook")
    assert runtime.asset_uri_handlers["icechunk"] is sanitize_uri
    assert runtime.asset_factories["icechunk"] is create_asset
    assert runtime.asset_to_openlineage_converters["icechunk"] is convert_asset_to_openlineage
    listed = {info.trigger_class_name.rpartition(".")[0] for info in manager.trigger}
    assert {module for entry in INFO["triggers"] for module in entry["python-modules"]} <= {
        *listed, *(info.trigger_class_name for info in manager.trigger),
    }  # fmt: skip


def test_the_form_of_the_connection_hides_labels_and_protects() -> None:
    entry = INFO["connection-types"][0]
    behaviour, fields = entry["ui-field-behaviour"], entry["conn-fields"]
    assert set(behaviour["hidden-fields"]) == {"port", "schema"}
    assert set(behaviour["relabeling"]) == {"host", "login", "password"}
    secret = [name for name, one in fields.items() if one["schema"].get("format") == "password"]
    assert secret == ["session_token", "sas_token"]
    assert all(one["label"] for one in fields.values())


def test_the_documentation_says_where_every_operator_and_sensor_is_imported_from() -> None:
    page = Path(__file__).parents[2] / "docs" / "operators.md"
    rows = re.findall(
        r"^\| `((?:operators|sensors)\.\w+)` \| (.+) \|$", page.read_text(), re.MULTILINE
    )
    told = {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}
    package = f"{airflow_provider_icechunk.__name__}."
    assert told == {
        (one.__module__.removeprefix(package), one.__name__)
        for one in listed("operators", "sensors")
    }
