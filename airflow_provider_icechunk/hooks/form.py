"""The connection form for Airflow before 3.2, made of what `provider.yaml` declares for later ones.

Airflow asks the class of the hook there. Without WTForms, which the FAB provider brings along, it
shows the fields of every connection as one document in `extra`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow_provider_icechunk.get_provider_info import get_provider_info


def form_widgets() -> dict[str, Any]:
    """The fields of `extra`, by name."""
    # No dependency of this package: the Airflow that asks for a form has it.
    forms = import_module("wtforms")
    optional = import_module("wtforms.validators").Optional
    made = {}
    for name, field in _declared()["conn-fields"].items():
        schema = field["schema"]
        text = {"label": field["label"], "description": field.get("description", "")}
        if schema["type"] == "boolean":
            made[name] = forms.BooleanField(default=schema.get("default", False), **text)
        else:
            kind = forms.PasswordField if schema.get("format") == "password" else forms.StringField
            made[name] = kind(validators=[optional()], default=schema.get("default"), **text)
    return made


def field_behaviour() -> dict[str, Any]:
    """Hidden, renamed and explained standard fields."""
    declared = _declared()["ui-field-behaviour"]
    return {
        "hidden_fields": list(declared["hidden-fields"]),
        "relabeling": dict(declared["relabeling"]),
        "placeholders": dict(declared["placeholders"]),
    }


def _declared() -> dict[str, Any]:
    info: dict[str, Any] = get_provider_info()
    return dict(info["connection-types"][0])
