"""The HTTP application: one route per view, all read-only and bounded.

The code that mounts it decides who has access: `build_app` takes dependencies for every route and
for those that touch a place. Answers are JSON; the page itself is a static file that knows only
this API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
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
from . import coverage as coverages
from . import health as healths
from .answers import Answers
from .bounds import RequestLimits, bounded
from .places import Memory, Places, Shelf, Standing

STATIC = Path(__file__).parent / "static"
FILES = {
    "page.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "plugin.js": "text/javascript; charset=utf-8",
    "browser.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
}
"""The files that are served unchanged; nothing else in the folder can be requested."""
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
FRESH = {**HEADERS, "Cache-Control": "no-store"}
_LOOKERS = 6
"""Threads that answer views: more would only compete for the processor."""
_MEASURERS = 2
_LOOKING = RequestLimits()
_MEASURING = RequestLimits(seconds=60.0, requests=50_000, bytes=1 << 30)

Text = Annotated[str, Query(min_length=1, max_length=1024)]
Maybe = Annotated[str | None, Query(max_length=1024)]


@dataclass(frozen=True, slots=True)
class Desk:
    """What the routes of one application share."""

    shelf: Shelf
    list_places: Callable[[Request], list[models.PlaceFacts]]
    host: Literal["airflow", "standalone"]
    answers: Answers = field(default_factory=Answers)
    differences: contents.VersionDifferences = field(default_factory=contents.VersionDifferences)
    headers: history.Headers = field(default_factory=history.Headers)
    trees: contents.Trees = field(default_factory=contents.Trees)
    verified: Memory[models.MaintenanceRun] = field(default_factory=lambda: Memory(256, 86_400.0))
    """By place and repository: what this server found itself."""
    healths: Memory[models.Health] = field(default_factory=lambda: Memory(256, 300.0))
    looking: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_LOOKERS))
    measuring: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_MEASURERS))


files = APIRouter()
everybody = APIRouter()
readers = APIRouter(prefix="/api/places/{connection_id}")


def build_app(
    places: Places,
    list_places: Callable[[Request], list[models.PlaceFacts]],
    *,
    host: Literal["airflow", "standalone"],
    for_all: Sequence[Dependency] = (),
    for_files: Sequence[Dependency] | None = None,
    for_places: Sequence[Dependency] = (),
) -> FastAPI:
    """The application to serve or to mount.

    :param for_all: dependencies that every route has.
    :param for_files: those of the page and its files, which hold no data; by default `for_all`.
    :param for_places: dependencies of the routes that touch a place, which the path parameter
        `connection_id` names.
    """
    app = FastAPI(title="Icechunk browser", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = Desk(Shelf(places), list_places, host)
    app.include_router(files, dependencies=list(for_all if for_files is None else for_files))
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
        headers=FRESH,
    )


def _desk(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


@dataclass(frozen=True, slots=True)
class Question:
    """A request about one repository."""

    desk: Desk
    place: str
    repository: str
    asked: str
    """The view and all its parameters."""

    async def answer(
        self,
        look: Callable[[Repository, models.RefNames], models.Answer],
        limits: RequestLimits = _LOOKING,
        *,
        keep: bool = True,
    ) -> Response:
        """The result of `look` on the repository, within the limits of a request.

        It runs in a few threads of its own, so that a slow storage blocks no other pages.
        """
        known = self.desk.shelf.known_standing(self.place, self.repository) if keep else None
        data = None if known is None else self.desk.answers.find(self._key(known))
        if data is None:
            limiter = self.desk.looking if limits is _LOOKING else self.desk.measuring
            data = await to_thread.run_sync(self._find, look, limits, keep, limiter=limiter)
        return Response(data, media_type="application/json", headers=FRESH)

    def _find(
        self,
        look: Callable[[Repository, models.RefNames], models.Answer],
        limits: RequestLimits,
        keep: bool,
    ) -> bytes:
        shelf = self.desk.shelf
        with bounded(limits):
            repository = shelf.open(self.place, self.repository)
            standing = shelf.standing(self.place, self.repository)

            def make() -> bytes:
                return look(repository, standing.names).model_dump_json().encode()

            return self.desk.answers.get(self._key(standing), make) if keep else make()

    def _key(self, standing: Standing) -> tuple[str, str, bytes, str]:
        return (self.place, self.repository, standing.mark, self.asked)

    @property
    def page_of(self) -> history.PageOf:
        """The address of the page about a task."""
        return self.desk.shelf.places.page_of


async def read_question(request: Request, connection_id: str, repository: Text) -> Question:
    """The repository that a request is about."""
    view = request.url.path.rpartition(f"/{connection_id}/")[2]
    asked = f"{view}?{request.url.query}"
    return Question(_desk(request), connection_id, repository, asked)


Asked = Annotated[Question, Depends(read_question)]


@files.get("/")
def page() -> FileResponse:
    """The page, for use outside Airflow's pages."""
    return static_file("page.html")


@files.get("/static/{name}")
def static_file(name: str) -> FileResponse:
    """A file of the page."""
    if name not in FILES:
        raise NotFoundError(f"there is no file {name[:100]!r}")
    headers = {**HEADERS, "Cache-Control": "no-cache"}
    return FileResponse(STATIC / name, media_type=FILES[name], headers=headers)


@everybody.get("/api/home")
def home(request: Request, response: Response) -> models.Home:
    """The places the user may view."""
    desk = _desk(request)
    response.headers.update(FRESH)
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
    response.headers.update(FRESH)
    with bounded(_LOOKING):
        found = _desk(request).shelf.repositories(connection_id)
    wanted = [one for one in found if (search or "").lower() in one.lower()]
    return models.Repositories(paths=wanted[offset : offset + limit], total=len(wanted))


@readers.get("/summary", response_model=models.Summary)
async def summary(asked: Asked) -> Response:
    """One repository at a glance."""
    return await asked.answer(
        lambda repo, refs: maintenance.read_summary(repo, asked.repository, refs, asked.page_of),
    )


@readers.get("/refs", response_model=models.RefNames)
async def refs(asked: Asked) -> Response:
    """Branches and tags."""
    return await asked.answer(lambda _, refs: refs)


@readers.get("/history", response_model=models.HistoryPage)
async def log(
    asked: Asked,
    version: Maybe = None,
    cursor: Annotated[str | None, Query(max_length=4096)] = None,
    text: Maybe = None,
    dag: Maybe = None,
    path: Maybe = None,
    since: Maybe = None,
    until: Maybe = None,
    limit: Annotated[int, Query(ge=1, le=history.MOST_ROWS)] = 50,
) -> Response:
    """Some commits, newest first."""
    wanted = history.Filter(
        text or "",
        dag or "",
        path or "",
        history.read_time(since),
        history.read_time(until),
    )

    def look(repo: Repository, refs: models.RefNames) -> models.HistoryPage:
        if cursor:
            start = history.read_cursor(cursor)
        elif version:
            start = [find_version(repo, version)]
        else:
            start = history.heads(refs)
        return history.read_page(
            repo,
            start,
            wanted,
            refs=refs,
            limit=limit,
            page_of=asked.page_of,
            headers=asked.desk.headers,
        )

    return await asked.answer(look)


@readers.get("/written", response_model=models.WrittenBytes)
async def written(
    asked: Asked, ids: Annotated[str, Query(min_length=1, max_length=4096)]
) -> Response:
    """How many bytes commits wrote; the ids are separated by dots."""
    wanted = history.read_cursor(ids)
    return await asked.answer(lambda repo, _: history.read_written(repo, wanted))


@readers.get("/health", response_model=models.Health)
async def health(asked: Asked) -> Response:
    """The health of the repository, as far as it can be known quickly."""
    desk, key = asked.desk, (asked.place, asked.repository)

    def find(repo: Repository, refs: models.RefNames) -> models.Health:
        maintenance, failed = desk.shelf.places.maintenance(*key)
        own = desk.verified.find(key)
        known = [*maintenance, *([own] if own else [])]
        found = healths.read_health(repo, refs, known, now=datetime.now(UTC))
        return found.model_copy(update={"failed_lately": failed})

    def look(repo: Repository, refs: models.RefNames) -> models.Health:
        return desk.healths.get(key, lambda: find(repo, refs))

    return await asked.answer(look, _MEASURING, keep=False)


@readers.get("/snapshot", response_model=models.SnapshotPage)
async def snapshot(
    asked: Asked,
    version: Text = "main",
    against: Maybe = None,
) -> Response:
    """One snapshot and what it changed."""
    return await asked.answer(
        lambda repo, refs: contents.read_snapshot(
            repo, version, against, asked.desk.differences, refs, asked.page_of
        ),
    )


@readers.get("/tree", response_model=models.TreePage)
async def tree(
    asked: Asked,
    version: Text = "main",
    against: Maybe = None,
    path: Text = "/",
    search: Maybe = None,
    marked: bool = False,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=contents.MOST_NODES)] = 200,
) -> Response:
    """Some children of a group."""
    return await asked.answer(
        lambda repo, _: contents.read_tree(
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


@readers.get("/array", response_model=models.ArrayFacts)
async def array(
    asked: Asked,
    path: Text,
    version: Text = "main",
) -> Response:
    """The metadata of an array."""
    return await asked.answer(
        lambda repo, _: arrays.read_array(repo, version, path),
    )


@readers.get("/chunks", response_model=models.ChunkMap)
async def chunks(
    asked: Asked,
    path: Text,
    version: Text = "main",
    against: Maybe = None,
    rows: Annotated[int | None, Query(ge=0, le=64)] = None,
    columns: Annotated[int | None, Query(ge=0, le=64)] = None,
) -> Response:
    """Which chunks of an array exist, and which were written."""
    return await asked.answer(
        lambda repo, _: arrays.read_chunk_map(
            repo, version, path, against, asked.desk.differences, rows=rows, columns=columns
        ),
    )


@readers.get("/coverage", response_model=models.CoverageFacts)
async def coverage(
    asked: Asked,
    path: Text,
    version: Text = "main",
    dim: Maybe = None,
) -> Response:
    """Which labels along a dimension are present."""
    return await asked.answer(
        lambda repo, _: coverages.read_coverage(repo, version, path, dim or None),
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
        raise InvalidInputError("box needs four numbers: first row, end, first column, end")
    return pictures.PicturePart(
        rows,
        columns,
        read_numbers(at, "at"),
        height,
        width,
        (corners[0], corners[1], corners[2], corners[3]) if corners else None,
    )


def read_numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers, separated by commas."""
    parts = text.split(",") if text else []
    if not all(one.isascii() and one.isdigit() and len(one) <= 18 for one in parts):
        raise InvalidInputError(f"{name} is {text[:100]!r}: whole numbers with commas are needed")
    return tuple(int(one) for one in parts)


Part = Annotated[pictures.PicturePart, Depends(read_wanted)]


@readers.get("/picture", response_model=models.Picture)
async def picture(
    asked: Asked,
    path: Text,
    part: Part,
    version: Text = "main",
) -> Response:
    """Values of an array, sampled."""
    return await asked.answer(
        lambda repo, _: pictures.draw(repo, version, path, part),
    )


@readers.get("/compare", response_model=models.Comparison)
async def compare(
    asked: Asked,
    path: Text,
    part: Part,
    left: Text,
    right: Text = "main",
) -> Response:
    """An array in two versions, and their difference."""
    return await asked.answer(
        lambda repo, _: pictures.compare(repo, left, right, path, part),
    )


@readers.get("/cell", response_model=models.Cell)
async def cell(
    asked: Asked,
    path: Text,
    at: Annotated[str, Query(max_length=1024)] = "",
    version: Text = "main",
) -> Response:
    """One value, and where its bytes are."""
    place = read_numbers(at, "at")
    return await asked.answer(
        lambda repo, _: pictures.read_cell(repo, version, path, place),
    )


@readers.get("/sizes", response_model=models.Sizes)
async def sizes(asked: Asked) -> Response:
    """Sizes by branch, array and age."""
    return await asked.answer(
        lambda repo, refs: maintenance.read_sizes(repo, refs),
        _MEASURING,
    )


@readers.get("/dry-run/{what}", response_model=models.DryRun)
async def dry_run(
    asked: Asked,
    what: Literal["expire", "collect"],
    older_than: Annotated[str, Query(min_length=1, max_length=64)] = "30d",
    keep_last: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
) -> Response:
    """What an expiry or a collection would remove; nothing is removed."""
    now = datetime.now(UTC)

    def look(repo: Repository, _: models.RefNames) -> models.DryRun:
        if what == "expire":
            return maintenance.plan_expiry(repo, older_than, keep_last, now=now)
        return maintenance.plan_collection(repo, older_than, now=now)

    return await asked.answer(look, _MEASURING, keep=False)


@readers.get("/verify", response_model=models.Verified)
async def verify(asked: Asked) -> Response:
    """Whether everything that branches and tags need exists."""

    def look(repo: Repository, _: models.RefNames) -> models.Verified:
        found = maintenance.verify(repo)
        desk, key = asked.desk, (asked.place, asked.repository)
        desk.verified.put(key, healths.verified(ok=found.ok, findings=len(found.findings)))
        desk.healths.forget(key)
        return found

    return await asked.answer(look, _MEASURING, keep=False)


def schema() -> dict[str, Any]:
    """The OpenAPI description of all routes, for programs that use them."""
    from fastapi.openapi.utils import get_openapi

    return get_openapi(
        title="Icechunk browser",
        version="1",
        routes=[*files.routes, *everybody.routes, *readers.routes],
    )
