"""Names of branches and tags as a listing of the store shows them.

One that cannot be followed is an error and never passed over: whoever deletes what nothing names
would take its snapshots for garbage.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError
from airflow_provider_icechunk.format.names import check_ref_name
from airflow_provider_icechunk.storage.keys import check_prefix


def listed_names(names: Iterable[str], prefix: str, what: str) -> list[str]:
    """The names, sorted; `FormatError` if one of them cannot be part of a key.

    :param prefix: what comes before the names in their keys.
    """
    return sorted(_readable(name, prefix, what) for name in names)


def _readable(name: str, prefix: str, what: str) -> str:
    try:
        check_ref_name(name, what)
        check_prefix(f"{prefix}{name}/")
    except InvalidInputError as error:
        raise FormatError(
            f"{prefix + name[:300]!r} is listed as a {what} whose name cannot be read "
            f"({error.message}). Rename or delete it with the software that made it: as long as it "
            "is there, references cannot be listed and nothing is collected"
        ) from error
    return name
