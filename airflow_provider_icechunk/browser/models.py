"""The responses of the browser: one pydantic model, and so one JSON schema, per view.

Texts that come from a repository (messages, names, attributes) are only ever text: the page puts
them into text nodes, never into markup. Long ones are cut here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

LONGEST = 4_000
_MOST_ITEMS = 200
_DEEPEST = 6

Mark = Literal["added", "changed", "removed", "moved"]


class Answer(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class PlaceFacts(Answer):
    """A root with repositories: a connection, or the folder of the command line."""

    id: str
    title: str
    location: str = ""


class Home(Answer):
    """The places the user may view."""

    places: list[PlaceFacts]
    host: Literal["airflow", "standalone"]
    version: str


class Repositories(Answer):
    """Some of the repositories of a place, in order."""

    paths: list[str]
    total: int


class MakerFacts(Answer):
    """The Airflow task that made a commit."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    page: str | None = None


class Touched(Answer):
    """How much a commit touched, by its transaction log."""

    arrays: int
    groups: int
    chunks: int
    added: int
    removed: int


class CommitFacts(Answer):
    """One snapshot in the history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    branches: list[str] = []
    tags: list[str] = []
    maker: MakerFacts | None = None
    touched: Touched | None = None
    rebases: int = 0
    """How often it was rebased before it landed."""
    metadata: dict[str, Any] = {}


class RefNames(Answer):
    """Branches and tags with their snapshots."""

    branches: dict[str, str]
    tags: dict[str, str]
    more_branches: int = 0
    more_tags: int = 0


class HistoryPage(Answer):
    """Some commits, newest first, and where the next ones begin."""

    commits: list[CommitFacts]
    cursor: str | None
    """Pass it to get older ones; `None` at the end of the history."""
    examined: int
    """Commits that were examined; with a filter, more than are shown."""
    examined_to: datetime | None = None


class Summary(Answer):
    """One repository at a glance."""

    path: str
    location: str
    generation: str
    head: CommitFacts | None
    branches: int
    tags: int
    arrays: int
    groups: int
    references: int
    """Chunk references in the newest version of `main`."""
    logical_bytes: int | None
    """`None` where there are too many arrays to add up at a glance."""
    manifest_bytes: int
    checks_passed: bool | None = None
    """What the checks before the newest commit of the default branch found, if any ran."""


class MaintenanceRun(Answer):
    """A known maintenance run."""

    what: Literal["verify", "collect", "expire"]
    at: datetime
    ok: bool
    summary: str = ""
    """What it found, in a few words."""
    page: str | None = None
    """The page about the task that did it."""


class Health(Answer):
    """The health of a repository. Anything too expensive to determine is `None`."""

    maintenance: list[MaintenanceRun]
    """The last one of each kind."""
    failed_lately: int | None = None
    """Task instances of the last week that failed to write; known inside Airflow only."""
    stored_bytes: int | None
    garbage_bytes: int | None
    """What no branch or tag needs; a collection deletes it once it is old enough."""
    commits_lately: int | None
    """On the default branch in the last seven days, of the newest 200."""
    rebased_lately: int | None
    rebases_lately: int | None
    missing_labels: dict[str, int] | None
    """By path of the array."""


class WrittenBytes(Answer):
    """Bytes that commits wrote, by snapshot id; `None` where that would be too expensive."""

    bytes: dict[str, int | None]


class NodeFacts(Answer):
    """A group or an array in a tree."""

    path: str
    name: str
    type: Literal["group", "array"]
    shape: list[int] | None = None
    chunk_shape: list[int] | None = None
    data_type: str | None = None
    dimension_names: list[str | None] | None = None
    mark: Mark | None = None
    chunks_changed: int = 0
    marks_below: int = 0
    """Marked nodes below a group."""
    children: int = 0


class TreePage(Answer):
    """Some children of a group."""

    snapshot_id: str
    against: str | None
    path: str
    nodes: list[NodeFacts]
    total: int
    marked: int
    """Marked nodes in the whole tree."""


class SnapshotPage(Answer):
    """One snapshot and what it changed."""

    commit: CommitFacts
    against: str | None
    added: int = 0
    changed: int = 0
    removed: int = 0
    moved: int = 0
    chunks: int = 0
    unknown: str | None = None
    """Why the changes are not known."""
    arrays: list[NodeFacts] = []
    """The arrays with the most changed chunks."""
    checks: list[dict[str, str]] = []
    manifests: int = 0
    manifest_bytes: int = 0


class ChunkKinds(Answer):
    """The chunks of an array by where their bytes are."""

    inline: int = 0
    native: int = 0
    virtual: int = 0
    missing: int = 0
    stored_bytes: int = 0


class AxisFacts(Answer):
    """A dimension of an array."""

    name: str
    length: int
    chunk: int
    chunks: int
    units: str | None = None
    long_name: str | None = None
    coordinate: str | None = None
    """Path of the array with its labels."""


class ArrayFacts(Answer):
    """The metadata of an array."""

    snapshot_id: str
    path: str
    data_type: str
    axes: list[AxisFacts]
    fill_value: str
    codecs: list[dict[str, Any]]
    attributes: dict[str, Any]
    logical_bytes: int
    chunks: ChunkKinds | None
    chunks_unknown: str | None = None
    drawable: Literal["image", "line", "table", "value", "none"]


class ChunkMap(Answer):
    """Which chunks of an array exist, over two of its dimensions."""

    snapshot_id: str
    against: str | None
    rows: int
    columns: int
    row_axis: str | None
    column_axis: str | None
    grid: list[int]
    """Chunks along the two dimensions; a cell of the map may stand for several."""
    present: str
    """Base64 of one byte for each cell: how many of its chunks exist, 255 for all."""
    changed: str
    coverage: float
    chunks: int
    chunks_changed: int


class ShownStatistics(Answer):
    """Of the values that are shown."""

    count: int
    missing: int
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    deviation: float | None = None


class PictureAxis(Answer):
    """One side of a picture: which positions it shows, and their labels."""

    name: str
    units: str | None
    indices: list[int]
    labels: list[str]


class Picture(Answer):
    """Values of an array, sampled to fit on a screen."""

    snapshot_id: str
    path: str
    kind: Literal["image", "line", "table", "value"]
    rows: PictureAxis | None
    columns: PictureAxis | None
    fixed: dict[str, str] = {}
    """The labels at which the other dimensions are held."""
    values: str = ""
    """Base64 of little-endian 32-bit floats, row by row; NaN where there is no value."""
    texts: list[str] = []
    statistics: ShownStatistics
    units: str | None = None
    long_name: str | None = None
    chunks_read: int
    chunks_total: int
    sampled: bool
    """Whether chunks in between were left out, to stay within the limits of a request."""


class Comparison(Answer):
    """An array in two versions."""

    left: Picture
    right: Picture
    difference: Picture | None
    reason: str | None = None
    """Why there is no difference: the shapes differ, or it is text."""


class Cell(Answer):
    """One value, and where its bytes are."""

    value: str
    index: list[int]
    labels: dict[str, str]
    chunk: list[int]
    kind: Literal["inline", "native", "virtual", "missing"]
    file: str | None = None
    offset: int | None = None
    length: int | None = None
    checksum: str | None = None


class SizeFacts(Answer):
    """The size of one version or array."""

    name: str
    chunks: int
    native_bytes: int
    inline_bytes: int
    virtual_bytes: int


class FileFacts(Answer):
    """Files of one kind."""

    name: str
    count: int
    bytes: int
    unneeded: int
    unneeded_bytes: int


class Sizes(Answer):
    """The size of a repository."""

    files: list[FileFacts]
    branches: list[SizeFacts]
    tags: list[SizeFacts]
    arrays: list[SizeFacts]
    """Of `main`, or of the first branch; the largest."""
    ages: list[SizeFacts]
    """Chunks of the newest version of each month."""
    snapshots: int


class DryRun(Answer):
    """What a maintenance run would do. Nothing was done."""

    what: Literal["expire", "collect"]
    older_than: datetime
    lines: list[tuple[str, int, int]]
    """What, how many, bytes."""
    refs: list[tuple[str, int, str]] = []


class FindingFacts(Answer):
    """A finding of a check of a repository."""

    severity: str
    code: str
    where: str
    what: str
    remedy: str


class Verified(Answer):
    """What a check of a repository found."""

    ok: bool
    checked: dict[str, int]
    findings: list[FindingFacts]


class CoverageFacts(Answer):
    """Which labels of a dimension are present."""

    dim: str
    wanted: int
    present: list[tuple[str, str]]
    missing: list[str]
    missing_total: int
    shared: bool


class Problem(Answer):
    """Why a request failed, and what to do."""

    kind: str
    message: str


def cut(text: str, longest: int = LONGEST) -> str:
    """A text of bounded length; lone surrogates, which JSON cannot carry, are replaced."""
    shown = text if len(text) <= longest else f"{text[:longest]} …"
    return shown.encode("utf-8", "replace").decode()


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as JSON, cut where it is long or deep."""
    shown = cut_value(value)
    return shown if isinstance(shown, dict) else {}


def cut_value(value: object, depth: int = 0) -> Any:
    """A value as JSON, cut where it is long or deep."""
    match value:
        case None | bool():
            return value
        case int():
            # JavaScript has no larger whole numbers.
            return value if abs(value) <= 1 << 53 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return cut(value)
        case Mapping():
            if depth >= _DEEPEST:
                return "…"
            items = list(value.items())[:_MOST_ITEMS]
            return {cut(str(key), 200): cut_value(one, depth + 1) for key, one in items}
        case list() | tuple() | set() | frozenset():
            if depth >= _DEEPEST:
                return "…"
            return [cut_value(one, depth + 1) for one in list(value)[:_MOST_ITEMS]]
    return cut(str(value), 400)
