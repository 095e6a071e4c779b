"""The HTTP application: one route for each view, all of them reading, all of them bounded.

Whoever mounts it says who may look: `build_app` takes dependencies for every route and for those
that touch a place. Answers are JSON; the page itself is a static file that knows only this API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.params import Depends as Dependency
from fastapi.responses import FileResponse, JSONResponse, Response

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.pipelines.versions import find_version
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    InvalidInputError,
    Kind,
    MaintenanceError,
    NotFoundError,
    UnsupportedError,
)

from . import arrays, contents, history, maintenance, models, pictures
from .bounds import RequestLimits, bounded
from .places import Places, Shelf

STATIC = Path(__file__).parent / "static"
FILES = {
    "page.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "plugin.js": "text/javascript; charset=utf-8",
    "browser.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
}
"""Everything that is served as it is: nothing else in the folder can be asked for."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "connect-src 'self'; img-src 'self' data:; font-src 'self'; form-action 'none'; "
        "frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LOOKING = RequestLimits()
_MEASURING = RequestLimits(seconds=60.0, requests=50_000, bytes=1 << 30)

Text = Annotated[str, Query(min_length=1, max_length=1024)]
Maybe = Annotated[str | None, Query(max_length=1024)]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Desk:
    """What the routes of one application share."""

    shelf: Shelf
    list_places: Callable[[Request], list[models.PlaceFacts]]
    host: Literal["airflow", "standalone"]
    differences: contents.VersionDifferences = field(default_factory=contents.VersionDifferences)
    trees: contents.Trees = field(default_factory=contents.Trees)


everybody = APIRouter()
readers = APIRouter(prefix="/api/places/{connection_id}")


def build_app(
    places: Places,
    list_places: Callable[[Request], list[models.PlaceFacts]],
    *,
    host: Literal["airflow", "standalone"],
    for_all: Sequence[Dependency] = (),
    for_places: Sequence[Dependency] = (),
) -> FastAPI:
    """The application to serve or to mount.

    :param for_all: dependencies that every route has, the files of the page included.
    :param for_places: dependencies of the routes that touch a place, which the path parameter
        `connection_id` names.
    """
    app = FastAPI(title="Icechunk browser", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = Desk(Shelf(places), list_places, host)
    app.include_router(everybody, dependencies=list(for_all))
    app.include_router(readers, dependencies=[*for_all, *for_places])
    app.add_exception_handler(IcechunkError, _explain)
    return app


def status_of(error: IcechunkError) -> int:
    """The HTTP status of an error."""
    match error:
        case NotFoundError():
            return 404
        case UnsupportedError():
            return 422
        case InvalidInputError() | MaintenanceError():
            return 400
        case AccessDeniedError():
            return 403
    if error.kind is Kind.LIMIT_EXCEEDED:
        return 413
    return 503 if error.kind is Kind.STORAGE_THROTTLED else 502


async def _explain(_: Request, error: Exception) -> Response:
    assert isinstance(error, IcechunkError)
    problem = models.Problem(kind=error.kind.value, message=error.message)
    return JSONResponse(
        problem.model_dump(),
        status_code=status_of(error),
        headers={**HEADERS, "Cache-Control": "no-store"},
    )


def _desk(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


@dataclass(frozen=True, slots=True)
class Question:
    """Somebody asks about one repository."""

    desk: Desk
    place: str
    repository: str

    def answer(
        self,
        look: Callable[[Repository], Found],
        limits: RequestLimits = _LOOKING,
    ) -> Found:
        """What `look` finds in the repository, within the limits of a request."""
        with bounded(limits):
            return look(self.desk.shelf.open(self.place, self.repository))

    @property
    def page_of(self) -> history.PageOf:
        """The address of the page about a task."""
        return self.desk.shelf.places.page_of


def read_question(
    request: Request, response: Response, connection_id: str, repository: Text
) -> Question:
    """Which repository a request is about."""
    response.headers.update({**HEADERS, "Cache-Control": "no-store"})
    return Question(_desk(request), connection_id, repository)


Asked = Annotated[Question, Depends(read_question)]


@everybody.get("/")
def page() -> FileResponse:
    """The page, for browsers that are not inside of Airflow's own."""
    return static_file("page.html")


@everybody.get("/static/{name}")
def static_file(name: str) -> FileResponse:
    """A file of the page."""
    if name not in FILES:
        raise NotFoundError(f"there is no file {name[:100]!r}")
    headers = {**HEADERS, "Cache-Control": "no-cache"}
    return FileResponse(STATIC / name, media_type=FILES[name], headers=headers)


@everybody.get("/api/home")
def home(request: Request, response: Response) -> models.Home:
    """Where the person who asks may look."""
    desk = _desk(request)
    response.headers.update({**HEADERS, "Cache-Control": "no-store"})
    return models.Home(
        places=desk.list_places(request),
        host=desk.host,
        version=installed("airflow-provider-icechunk"),
    )


@readers.get("/repositories")
def repositories(
    request: Request,
    response: Response,
    connection_id: str,
    search: Maybe = None,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> models.Repositories:
    """The repositories below the root of a place."""
    response.headers.update({**HEADERS, "Cache-Control": "no-store"})
    with bounded(_LOOKING):
        found = _desk(request).shelf.repositories(connection_id)
    wanted = [one for one in found if (search or "").lower() in one.lower()]
    return models.Repositories(paths=wanted[offset : offset + limit], total=len(wanted))


@readers.get("/summary")
def summary(asked: Asked) -> models.Summary:
    """One repository at a glance."""
    return asked.answer(
        lambda repo: maintenance.read_summary(repo, asked.repository, asked.page_of),
    )


@readers.get("/refs")
def refs(asked: Asked) -> models.RefNames:
    """Branches and tags."""
    return asked.answer(lambda repo: history.read_refs(repo))


@readers.get("/history")
def log(
    asked: Asked,
    version: Maybe = None,
    cursor: Annotated[str | None, Query(max_length=4096)] = None,
    text: Maybe = None,
    dag: Maybe = None,
    path: Maybe = None,
    since: Maybe = None,
    until: Maybe = None,
    limit: Annotated[int, Query(ge=1, le=history.MOST_ROWS)] = 50,
) -> models.HistoryPage:
    """Some commits, newest first."""
    wanted = history.Filter(
        text or "",
        dag or "",
        path or "",
        history.read_time(since),
        history.read_time(until),
    )

    def look(repo: Repository) -> models.HistoryPage:
        if cursor:
            start = history.read_cursor(cursor)
        elif version:
            start = [find_version(repo, version)]
        else:
            start = history.heads(history.read_refs(repo))
        return history.read_page(repo, start, wanted, limit=limit, page_of=asked.page_of)

    return asked.answer(look)


@readers.get("/snapshot")
def snapshot(
    asked: Asked,
    version: Text = "main",
    against: Maybe = None,
) -> models.SnapshotPage:
    """One snapshot and what it changed."""
    return asked.answer(
        lambda repo: contents.read_snapshot(
            repo, version, against, asked.desk.differences, asked.page_of
        ),
    )


@readers.get("/tree")
def tree(
    asked: Asked,
    version: Text = "main",
    against: Maybe = None,
    path: Text = "/",
    search: Maybe = None,
    marked: bool = False,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=contents.MOST_NODES)] = 200,
) -> models.TreePage:
    """Some children of a group."""
    return asked.answer(
        lambda repo: contents.read_tree(
            repo,
            version,
            against,
            asked.desk.trees,
            asked.desk.differences,
            path=path,
            search=search or "",
            only_marked=marked,
            offset=offset,
            limit=limit,
        ),
    )


@readers.get("/array")
def array(
    asked: Asked,
    path: Text,
    version: Text = "main",
) -> models.ArrayFacts:
    """The metadata of an array."""
    return asked.answer(
        lambda repo: arrays.read_array(repo, version, path),
    )


@readers.get("/chunks")
def chunks(
    asked: Asked,
    path: Text,
    version: Text = "main",
    against: Maybe = None,
    rows: Annotated[int | None, Query(ge=0, le=64)] = None,
    columns: Annotated[int | None, Query(ge=0, le=64)] = None,
) -> models.ChunkMap:
    """Which chunks of an array are there, and which were written."""
    return asked.answer(
        lambda repo: arrays.read_chunk_map(
            repo, version, path, against, asked.desk.differences, rows=rows, columns=columns
        ),
    )


@readers.get("/coverage")
def coverage(
    asked: Asked,
    path: Text,
    version: Text = "main",
    dim: Maybe = None,
) -> models.CoverageFacts:
    """Which labels along a dimension are there."""
    return asked.answer(
        lambda repo: arrays.read_coverage(repo, version, path, dim or None),
    )


def read_wanted(
    rows: Annotated[int | None, Query(ge=0, le=64)] = None,
    columns: Annotated[int | None, Query(ge=0, le=64)] = None,
    at: Annotated[str, Query(max_length=1024)] = "",
    box: Annotated[str, Query(max_length=200)] = "",
    height: Annotated[int, Query(ge=1, le=pictures.MOST_SIDE)] = 360,
    width: Annotated[int, Query(ge=1, le=pictures.MOST_SIDE)] = 640,
) -> pictures.PicturePart:
    """Which part of an array to draw."""
    corners = read_numbers(box, "box")
    if corners and len(corners) != 4:
        raise InvalidInputError("box has four numbers: first row, end, first column, end")
    return pictures.PicturePart(
        rows,
        columns,
        read_numbers(at, "at"),
        height,
        width,
        (corners[0], corners[1], corners[2], corners[3]) if corners else None,
    )


def read_numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    parts = text.split(",") if text else []
    if not all(one.isascii() and one.isdigit() and len(one) <= 18 for one in parts):
        raise InvalidInputError(f"{name} is {text[:100]!r}: whole numbers with commas are needed")
    return tuple(int(one) for one in parts)


Part = Annotated[pictures.PicturePart, Depends(read_wanted)]


@readers.get("/picture")
def picture(
    asked: Asked,
    path: Text,
    part: Part,
    version: Text = "main",
) -> models.Picture:
    """Values of an array, thinned out."""
    return asked.answer(
        lambda repo: pictures.draw(repo, version, path, part),
    )


@readers.get("/compare")
def compare(
    asked: Asked,
    path: Text,
    part: Part,
    left: Text,
    right: Text = "main",
) -> models.Comparison:
    """An array in two versions, and their difference."""
    return asked.answer(
        lambda repo: pictures.compare(repo, left, right, path, part),
    )


@readers.get("/cell")
def cell(
    asked: Asked,
    path: Text,
    at: Annotated[str, Query(max_length=1024)] = "",
    version: Text = "main",
) -> models.Cell:
    """One value, and where its bytes are."""
    place = read_numbers(at, "at")
    return asked.answer(
        lambda repo: pictures.read_cell(repo, version, path, place),
    )


@readers.get("/sizes")
def sizes(asked: Asked) -> models.Sizes:
    """Sizes by branch, array and age."""
    return asked.answer(
        lambda repo: maintenance.read_sizes(repo),
        _MEASURING,
    )


@readers.get("/dry-run/{what}")
def dry_run(
    asked: Asked,
    what: Literal["expire", "collect"],
    older_than: Annotated[str, Query(min_length=1, max_length=64)] = "30d",
    keep_last: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
) -> models.DryRun:
    """What an expiry or a collection would remove; nothing is removed."""
    now = datetime.now(UTC)

    def look(repo: Repository) -> models.DryRun:
        if what == "expire":
            return maintenance.plan_expiry(repo, older_than, keep_last, now=now)
        return maintenance.plan_collection(repo, older_than, now=now)

    return asked.answer(look, _MEASURING)


@readers.get("/verify")
def verify(asked: Asked) -> models.Verified:
    """Whether all that branches and tags need is there."""
    return asked.answer(
        lambda repo: maintenance.verify(repo),
        _MEASURING,
    )


def schema() -> dict[str, Any]:
    """The OpenAPI description of all routes, for programs that use them."""
    from fastapi.openapi.utils import get_openapi

    return get_openapi(
        title="Icechunk browser", version="1", routes=[*everybody.routes, *readers.routes]
    )
