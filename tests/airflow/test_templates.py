"""Templates: every declared field is an attribute and is rendered; `__init__` changes nothing."""

import inspect
from collections.abc import Iterable
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from support.provider_classes import AT, DATASET, listed, parameters, required

from airflow_provider_icechunk.decorators.icechunk import _IcechunkDecoratedOperator, with_session
from airflow_provider_icechunk.notifications.tag import IcechunkTagNotifier

OPERATORS = listed("operators", "sensors")
TEXT = "{{ x }}"
CHECKED: dict[str, Any] = {
    "dataset": DATASET, "on_conflict": "ours", "on_chunk_conflict": "theirs", "on_rerun": "skip",
    "on_existing_label": "replace", "variables": [], "writes": (),
}  # fmt: skip
"""Arguments that are looked at where the DAG is parsed."""


def build(operator: type[BaseOperator]) -> BaseOperator:
    fits = {"dataset": DATASET, "at": AT, "function": TEXT}
    given = {name: value for name, value in fits.items() if name in parameters(operator)}
    made = operator(task_id="task", **dict.fromkeys(required(operator), TEXT) | given)
    return templated(made, operator.template_fields)


def templated(made: BaseOperator, fields: Iterable[str]) -> BaseOperator:
    """The operator with a template in each of the fields, also in those that exclude each other."""
    for name in fields:
        assert hasattr(made, name)
        setattr(made, name, TEXT)
    return made


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.__name__)
class TestOperator:
    def test_every_template_field_is_rendered(self, operator: type[BaseOperator]) -> None:
        made = build(operator)
        assert operator.template_fields
        made.render_template_fields({"x": "rendered"})
        for name in operator.template_fields:
            assert getattr(made, name) == "rendered", name

    def test_every_parameter_is_by_keyword_and_documented(
        self, operator: type[BaseOperator]
    ) -> None:
        text = inspect.getdoc(operator) or ""
        for name, one in parameters(operator).items():
            assert one.kind is one.KEYWORD_ONLY, name
            assert f":param {name}:" in text, name
        for name in set(operator.template_fields) & set(parameters(operator)):
            entry = text.split(f":param {name}:")[1].split(":param ")[0]
            assert "(templated)" in entry, name

    def test_what_is_given_is_kept_as_it_is(self, operator: type[BaseOperator]) -> None:
        marks = {name: CHECKED.get(name, object()) for name in parameters(operator)}
        made = operator(**{"task_id": "task", **marks})
        for name, mark in marks.items():
            assert getattr(made, name) is mark, name


def test_there_are_operators() -> None:
    assert len(OPERATORS) >= 19


def test_the_decorator_renders_its_fields_too() -> None:
    own = set(_IcechunkDecoratedOperator.template_fields) - {
        "op_args",
        "op_kwargs",
        "templates_dict",
    }
    made = _IcechunkDecoratedOperator(
        task_id="task", python_callable=with_session(lambda session: session), repository="r"
    )
    templated(made, own)
    made.render_template_fields({"x": "rendered"})
    assert {name: getattr(made, name) for name in own} == dict.fromkeys(own, "rendered")
    assert own == {
        "repository", "at", "branch", "message", "metadata", "read", "group", "region",
        "append_dim",
    }  # fmt: skip


def test_the_notifier_renders_its_fields_too() -> None:
    fields = IcechunkTagNotifier.template_fields
    made = IcechunkTagNotifier(**dict.fromkeys(fields, TEXT))
    made.render_template_fields({"x": "rendered"})
    assert {getattr(made, name) for name in fields} == {"rendered"}
