"""Templates: every declared field is an attribute and is rendered; nothing works in `__init__`."""

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
from airflow.sdk import BaseOperator

import airflow_provider_icechunk.operators
import airflow_provider_icechunk.sensors

TEXT = "{{ x }}"


def operators() -> list[type[BaseOperator]]:
    found = set()
    for package in (airflow_provider_icechunk.operators, airflow_provider_icechunk.sensors):
        for module in pkgutil.iter_modules(package.__path__):
            loaded = importlib.import_module(f"{package.__name__}.{module.name}")
            found |= {
                one
                for _, one in inspect.getmembers(loaded, inspect.isclass)
                if issubclass(one, BaseOperator) and one.__name__.startswith("Icechunk")
            }
    return sorted(found, key=lambda one: one.__name__)


def parameters(operator: type[BaseOperator]) -> dict[str, inspect.Parameter]:
    """What its constructor and those of its bases in this package take."""
    found: dict[str, inspect.Parameter] = {}
    for base in operator.__mro__:
        if base.__module__.startswith("airflow_provider_icechunk"):
            made = inspect.signature(base.__init__).parameters.items()
            found |= {name: one for name, one in made if name not in ("self", "kwargs")}
    return found


def build(operator: type[BaseOperator]) -> BaseOperator:
    required = [
        name
        for name, one in parameters(operator).items()
        if one.default is inspect.Parameter.empty and one.kind is not one.VAR_KEYWORD
    ]
    templated = dict.fromkeys(operator.template_fields, TEXT)
    return operator(**{"task_id": "task", **dict.fromkeys(required, TEXT), **templated})


@pytest.mark.parametrize("operator", operators(), ids=lambda one: one.__name__)
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
        marks: dict[str, Any] = {name: object() for name in parameters(operator)}
        made = operator(**{"task_id": "task", **marks})
        for name, mark in marks.items():
            assert getattr(made, name) is mark, name


def test_there_are_operators() -> None:
    assert len(operators()) >= 19
