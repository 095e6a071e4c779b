"""Values that come from outside: they refuse what they do not know, and say what is wrong."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class ClosedModel(BaseModel):
    """A frozen value that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def describe(error: ValidationError) -> str:
    """The problems by place and reason, without the values, which may be secrets."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the whole'}: {problem['msg']}"
        for problem in problems[:10]
    )
