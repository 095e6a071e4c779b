"""What tasks have in common that call a function of the user's and commit what it wrote."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator

from airflow_provider_icechunk.operators.base import DatasetOperator, MergingOperator, check_place

if TYPE_CHECKING:
    from airflow.sdk import Context

Given = Mapping[str, Callable[[], Any]]
"""What a task fills in, by parameter, made when the function has it."""

_given: ContextVar[Given] = ContextVar("icechunk_given")


class FunctionOperator(MergingOperator, DatasetOperator, DecoratedOperator, PythonOperator):
    """Call a function and commit what it wrote; the repository may be that of a dataset."""

    template_fields = (
        *DecoratedOperator.template_fields,
        "repository",
        "at",
        "branch",
        "message",
        "metadata",
    )
    template_fields_renderers = {  # noqa: RUF012 - as Airflow declares it
        **DecoratedOperator.template_fields_renderers,
        "at": "json",
        "metadata": "json",
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Any = None,
        op_kwargs: Any = None,
        at: Mapping[str, Any] | str | None = None,
        partition_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.at = at
        self.partition_by = partition_by
        function = {
            "python_callable": python_callable,
            "op_args": op_args,
            "op_kwargs": op_kwargs,
        }
        super().__init__(kwargs_to_upstream=function, **function, **kwargs)
        check_place(self.dataset, at)

    def call(self, context: Context, given: Given) -> Any:
        """What the function returns, with the parameters that the task fills in."""
        token = _given.set(given)
        try:
            return super().execute(context)
        finally:
            _given.reset(token)


def without(
    function: Callable[..., Any], hidden: Collection[str], wanted: Sequence[str]
) -> Callable[..., Any]:
    """The function as Airflow checks calls of it: without the parameters that the task fills in."""
    signature = inspect.signature(function)
    kept = [one for name, one in signature.parameters.items() if name not in hidden]
    reduced = signature.replace(parameters=kept)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = _given.get()
        bound = reduced.bind(*args, **kwargs)
        return function(**{name: given[name]() for name in wanted}, **_by_name(bound))

    call.__signature__ = reduced  # type: ignore[attr-defined]
    return call


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments of a call by the names of their parameters."""
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return named
