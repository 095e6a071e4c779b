"""What maintenance would find and do. Dry runs only: the storage below refuses to write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.checks.checks import CHECKS_KEY
from airflow_provider_icechunk.engine.format.node_table import count_arrays
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.history.versions import listed
from airflow_provider_icechunk.engine.maintenance import measure as measuring
from airflow_provider_icechunk.engine.maintenance.ages import SAFE_AGE, read_cutoff, safe_cutoff
from airflow_provider_icechunk.engine.maintenance.retention import RetentionPolicy

from .arrays import document_of, item_size
from .history import PageOf, commit_facts
from .models import (
    DryRun,
    FileFacts,
    FindingFacts,
    RefNames,
    SizeFacts,
    Sizes,
    Summary,
    Verified,
    cut,
)

_MOST_ROWS = 200
_MOST_ARRAYS = 500
"""The most arrays whose sizes are summed for an overview; reading the metadata of more would take
too long.
"""


def read_summary(repository: Repository, path: str, refs: RefNames, page_of: PageOf) -> Summary:
    """One repository at a glance: from its refs and its newest snapshot."""
    core = repository.core
    tip = refs.branches.get("main") or next(iter(refs.branches.values()), None)
    facts: dict[str, object] = {"arrays": 0, "groups": 0, "references": 0}
    facts |= {"logical_bytes": 0, "manifest_bytes": 0}
    head = None
    if tip is not None:
        snapshot = core.objects.snapshot_header(listed(core, tip))
        head = commit_facts(core, snapshot, refs, page_of)
        arrays = count_arrays(snapshot.nodes)
        files = snapshot.manifest_files.values()
        facts = {
            "arrays": arrays,
            "groups": len(snapshot.nodes) - arrays,
            "references": sum(one.num_chunk_refs for one in files),
            "manifest_bytes": sum(one.size_bytes for one in files),
            "logical_bytes": None
            if arrays > _MOST_ARRAYS
            else sum(
                math.prod(array_document(node).shape) * item_size(document_of(node))
                for node in snapshot.nodes.values()
                if node.array is not None
            ),
        }
        report = snapshot.metadata.get(CHECKS_KEY)
        if isinstance(report, Mapping) and isinstance(report.get("passed"), bool):
            facts["checks_passed"] = report["passed"]
    return Summary.model_validate(
        {
            "path": path,
            "location": repository.storage.location,
            "generation": str(repository.spec_version),
            "head": head,
            "branches": len(refs.branches) + refs.more_branches,
            "tags": len(refs.tags) + refs.more_tags,
            **facts,
        }
    )


def read_sizes(repository: Repository, refs: RefNames) -> Sizes:
    """Sizes by branch, array and age."""
    found = repository.measure()
    branch = "main" if "main" in found.arrays else next(iter(found.arrays), None)
    arrays = found.arrays.get(branch or "", {})
    largest = sorted(arrays.items(), key=lambda item: -_bytes(item[1]))[:_MOST_ROWS]
    return Sizes(
        files=[
            FileFacts(
                name=name,
                count=one.count,
                bytes=one.bytes,
                unneeded=one.unreachable_count,
                unneeded_bytes=one.unreachable_bytes,
            )
            for name, one in found.files.items()
        ],
        branches=[_size(name, one) for name, one in list(found.branches.items())[:_MOST_ROWS]],
        tags=[_size(name, one) for name, one in list(found.tags.items())[:_MOST_ROWS]],
        arrays=[_size(path, one) for path, one in largest],
        ages=_ages(repository, found, refs.branches.get(branch or "")),
        snapshots=len(found.snapshots),
    )


def _ages(repository: Repository, found: measuring.Measurement, tip: str | None) -> list[SizeFacts]:
    """The size of the newest version of each month of one branch, oldest first."""
    months: dict[str, SizeFacts] = {}
    if tip is None:
        return []
    for info in repository.ancestry(snapshot_id=tip):
        month = info.written_at.astimezone(UTC).strftime("%Y-%m")
        if month not in months and info.id in found.snapshots:
            months[month] = _size(month, found.snapshots[info.id])
    return list(months.values())[:_MOST_ROWS][::-1]


def _bytes(one: measuring.Size) -> int:
    return one.native_bytes + one.inline_bytes + one.virtual_bytes


def _size(name: str, one: measuring.Size) -> SizeFacts:
    return SizeFacts(
        name=cut(name, 500),
        chunks=one.native_chunks + one.inline_chunks + one.virtual_chunks,
        native_bytes=one.native_bytes,
        inline_bytes=one.inline_bytes,
        virtual_bytes=one.virtual_bytes,
    )


def plan_expiry(
    repository: Repository, older_than: str, keep_last: int | None, *, now: datetime
) -> DryRun:
    """What an expiry would remove from the history."""
    cutoff = safe_cutoff(read_cutoff(older_than), SAFE_AGE, now=now, setting="the minimum age")
    plan = repository.plan_expiration(RetentionPolicy(cutoff, keep_last))
    return DryRun(
        what="expire",
        older_than=cutoff,
        lines=[("snapshots", len(plan.released), 0)],
        refs=[
            (
                cut(f"{ref.type} {ref.name}", 300),
                ref.kept,
                "deleted" if ref.delete else "expired, stays" if ref.expired else "stays",
            )
            for ref in plan.refs[:_MOST_ROWS]
        ],
    )


def plan_collection(repository: Repository, older_than: str, *, now: datetime) -> DryRun:
    """What a collection would delete."""
    cutoff = safe_cutoff(read_cutoff(older_than), SAFE_AGE, now=now, setting="the minimum age")
    plan = repository.collection().make_plan(cutoff, minimum_age=SAFE_AGE)
    layers = {name: one for name, one in plan.as_dict().items() if isinstance(one, dict)}
    return DryRun(
        what="collect",
        older_than=plan.cutoff,
        lines=[(name, one["count"], one["bytes"]) for name, one in layers.items()],
    )


def verify(repository: Repository) -> Verified:
    """Whether everything that branches and tags need exists."""
    report = repository.verify()
    return Verified(
        ok=report.ok,
        checked=dict(report.checked),
        findings=[
            FindingFacts(
                severity=one.severity.value,
                code=one.code.value,
                where=cut(one.where, 500),
                what=cut(one.what, 1000),
                remedy=cut(one.remedy, 1000),
            )
            for one in report.findings[:_MOST_ROWS]
        ],
    )
