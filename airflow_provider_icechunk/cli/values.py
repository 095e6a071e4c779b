"""`ls` and `cat`: the repositories below an address, and what a group or an array holds."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.pipelines.versions import find_version
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError

from . import render
from .render import number, plain, several
from .screen import Report, Task

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Session

_MOST_CELLS = 100_000


def ls(task: Task) -> Report:
    """List the repositories at and below an address."""
    from airflow_provider_icechunk.engine.pipelines.repositories import list_repositories

    below = task.below
    assert below is not None
    with task.progress("searching"):
        found = list_repositories(lambda path: below("" if path == "." else path), ".")
    location = task.storage.location
    lines = [render.line(plain(path)) for path in found]
    return Report(
        {"location": location, "repositories": found},
        lines or [render.line(f"no repositories at or below {plain(location)}")],
    )


def cat(task: Task) -> Report:
    """Show the document of a group, or the document and values of an array."""
    repository = task.open()
    snapshot_id = find_version(repository, task.args.version)
    session = repository.readonly_session(snapshot_id=snapshot_id)
    path = "/" + task.args.path.strip("/")
    node = session.tree.node(path)
    if node is None:
        raise NotFoundError(
            f"no group or array at {path!r} in snapshot {snapshot_id}; `tree` lists them",
            kind=Kind.NODE_NOT_FOUND,
        )
    document = json.loads(node.user_data)
    result = {"snapshot_id": snapshot_id, "path": path, "document": document}
    if node.array is None:
        if task.args.select:
            raise InvalidInputError(f"{path!r} is a group, which has no values to select")
        return Report(result, [render.line(plain(json.dumps(document, indent=2)))])
    values = read_part(session, path, task.args.select)
    body = [
        render.line(f"{plain(path)}: {several(values.size, 'value')}, {plain(str(values.dtype))}"),
        *map(render.line, map(plain, _shown(values).splitlines())),
    ]
    return Report({**result, "values": values.tolist()}, body)


def read_part(session: Session, path: str, selection: str | None) -> Any:
    """The selected values of an array; refuses to read more than fits a screen many times."""
    from airflow_provider_icechunk.engine.arrays.blocks import readable_array

    array = readable_array(session.store, path)
    part = parse_selection(selection, array.shape)
    cells = prod(1 if isinstance(one, int) else len(range(one.start, one.stop)) for one in part)
    if cells > _MOST_CELLS:
        raise InvalidInputError(
            f"{path!r} has {number(cells)} values there, but at most {number(_MOST_CELLS)} are "
            f'shown: select some with --select, such as --select "{_example(array.shape)}"'
        )
    return array[part]


def parse_selection(text: str | None, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    """A selection like `0, 10:20`: positions and ranges, whole dimensions where it ends. Pure."""
    parts = [] if not text else text.split(",")
    if len(parts) > len(shape):
        raise InvalidInputError(
            f"--select names {len(parts)} dimensions, but the array has {len(shape)}"
        )
    found = [_one(part.strip(), length) for part, length in zip(parts, shape, strict=False)]
    return (*found, *(slice(0, length) for length in shape[len(found) :]))


def _one(part: str, length: int) -> int | slice:
    try:
        ends = [int(one) if one.strip() else None for one in part.split(":")]
    except ValueError:
        ends = []
    match ends:
        case [int(position)] if -length <= position < length:
            return position % length
        case [int(position)]:
            raise InvalidInputError(
                f"--select: position {position} is outside a dimension of length {length}"
            )
        case [first, last]:
            start, stop, _ = slice(first, last).indices(length)
            return slice(start, max(start, stop))
        case _:
            raise InvalidInputError(
                f"--select: {part!r} is neither a position nor a range like 10:20"
            )


def _example(shape: tuple[int, ...]) -> str:
    return ", ".join(["0"] * max(0, len(shape) - 2) + ["0:10"] * min(2, len(shape)))


def _shown(values: Any) -> str:
    import numpy as np

    return np.array2string(values, threshold=1000, max_line_width=100)
