"""Every operator's docstring opens with a sentence and a DAG that can be pasted into a file."""

import inspect
import re
import textwrap

import pytest
from airflow.sdk import DAG
from support.provider_classes import listed

OPERATORS = listed("operators")
OPENING = re.compile(
    r"(?P<sentence>[A-Z][^\n]*\.)\n\n\.\. code-block:: python\n\n(?P<code>(?:    [^\n]*\n|\n)+)"
)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_the_docstring_of_an_operator_opens_with_a_dag_that_runs(operator: type) -> None:
    opening = OPENING.match(inspect.cleandoc(operator.__doc__ or "") + "\n")
    assert opening is not None, operator.__doc__
    names: dict[str, object] = {}
    exec(compile(textwrap.dedent(opening["code"]), operator.__name__, "exec"), names)
    (dag,) = (value for value in names.values() if isinstance(value, DAG) and value.tasks)
    assert any(type(task) is operator for task in dag.tasks)
    dag.check_cycle()
