"""Recipes for other Sparks: what their operators would be given is a job that ours runs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from airflow_provider_icechunk.spark.specification import FunctionWrite, parse_job

PAGE = Path(__file__).parents[2] / "docs" / "spark-anywhere.md"
PLATFORMS = ["Databricks", "EMR", "EMR Serverless", "Dataproc", "Kubernetes", "Livy"]
SESSION = {
    "repository": "weather",
    "conn_id": "icechunk_default",
    "place": {"url": "s3://it's a <bucket> & more/weather"},
    "work_unit": {"version": 1, "job": "dag/run/open/-1/1"},
    "fragments": "jobs/abc/",
}


def blocks() -> dict[str, str]:
    """The first code of each section; the definitions that all share have none."""
    found: dict[str, str] = {"": ""}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE):
        codes = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if section.startswith("#"):
            found[""] = next(code for code in codes if code.startswith("JOB"))
        elif codes:
            found[section.splitlines()[0]] = codes[0]
    return found


def arguments(platform: str) -> Any:
    names: dict[str, Any] = {}
    exec(blocks()[""] + blocks()[platform], names)
    return names["arguments"]


def rendered(value: Any, session: dict[str, Any]) -> Any:
    """What Airflow makes of the templates in an operator's arguments."""
    if isinstance(value, dict):
        return {key: rendered(one, session) for key, one in value.items()}
    if isinstance(value, list):
        return [rendered(one, session) for one in value]
    if not isinstance(value, str):
        return value
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    given = {
        "ti": SimpleNamespace(xcom_pull={"open": session}.__getitem__),
        "var": SimpleNamespace(value={}),
    }
    return environment.from_string(value).render(given)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


def test_every_platform_of_the_page_is_tried_here() -> None:
    assert set(blocks()) == {"", *PLATFORMS, "Spark Connect"}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_recipe_hands_over_the_job_as_one_small_argument(platform: str) -> None:
    given = rendered(arguments(platform), SESSION)
    (text,) = [one for one in texts(given) if '"session"' in one]
    assert len(text) < 4096
    job = parse_job(text)
    given_back = job.session.model_dump(include=set(SESSION))
    assert given_back["place"].pop("url") == SESSION["place"]["url"]  # type: ignore[index]
    assert not any(given_back["place"].values())
    assert given_back == SESSION | {"place": given_back["place"]}
    (write,) = job.writes
    assert isinstance(write, FunctionWrite)
    assert write.arrays == ("t2m",)
    assert "{{" not in json.dumps(given)


def test_a_writer_that_runs_again_for_a_new_session_has_its_old_name() -> None:
    again = SESSION | {"work_unit": {"version": 1, "job": "dag/run/open/-1/2"}}
    names = set()
    for session in (SESSION, again):
        found = texts(rendered(arguments("Livy"), session))
        (text,) = [one for one in found if '"session"' in one]
        names.add(parse_job(text).writer)
    assert len(names) == 1


def test_the_recipe_for_connect_says_where_the_server_is() -> None:
    assert rendered(arguments("Spark Connect"), SESSION)["remote"] == "sc://localhost:15002"
