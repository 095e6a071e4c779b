"""Check that every reference resolves: branches, snapshots, manifests, chunk files.

Reads all metadata that branches and tags reach, and lists every folder once; chunks are neither
read nor requested one by one. Unlike the collector it reports damage instead of stopping. While a
collector runs it may report objects that are being deleted; then run it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.chunk_refs import Extents
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot
from airflow_provider_icechunk.engine.history.ancestry import TOKEN_KEY
from airflow_provider_icechunk.exceptions import IcechunkError, MaintenanceError

from .findings import (
    Code,
    Finding,
    Landed,
    VerifyReport,
    boxes,
    check_array,
    check_chunks,
    check_count,
    check_manifest_list,
    check_once,
    error,
    info,
    warning,
    worst_first,
)
from .listing import Ids, IdUnion, Listing, contains, list_folder, of_bytes, with_aliases
from .reachable import Loader, chunk_ids

_AT_ONCE = 16
_RESET = "restore the file from a backup, or reset the branches and delete the tags that need it"
_HIDING = frozenset({Code.REF_UNREADABLE, Code.SNAPSHOT_UNREADABLE, Code.MANIFEST_UNREADABLE})
"""Damage that may hide references to files that look like garbage."""
Identity = TypeVar("Identity")
Loaded = TypeVar("Loaded")
Boxes = Mapping[NodeId, tuple[Extents, ...]]


def verify(core: Core) -> VerifyReport:
    """Check everything that branches and tags reach, and count everything else."""
    return Verification(core).run()


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Listings of all folders."""

    snapshots: Listing
    transactions: Listing
    manifests: Listing
    chunks: Listing
    attributes: Listing


@dataclass(frozen=True, slots=True, eq=False)
class Examined:
    """The result of checking a manifest."""

    boxes: Boxes
    chunks: Ids
    references: int
    findings: list[Finding]


@dataclass(slots=True)
class Verification:
    """One run. A subclass can do the heavy listing and reading elsewhere."""

    core: Core
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> VerifyReport:
        """Check everything and report."""
        tips = self._tips()
        snapshots = self._snapshots(tips)
        stored = self.list_files()
        manifests = self._manifests(snapshots, stored)
        for identity, snapshot in snapshots.items():
            self._check_snapshot(identity, snapshot, snapshots, stored, manifests)
        if not any(finding.code in _HIDING for finding in self.findings):
            self.count_unreachable(snapshots, stored, manifests)
        return VerifyReport(
            worst_first(self.findings),
            {
                "refs": len(tips),
                "snapshots": len(snapshots),
                "manifests": len(manifests),
                "references": sum(examined.references for examined in manifests.values()),
                "chunk_files": len(stored.chunks),
            },
        )

    def _tips(self) -> dict[str, SnapshotId]:
        tips: dict[str, SnapshotId] = {}
        reads: list[tuple[str, Callable[[], Mapping[str, SnapshotId]]]] = [
            ("branch", self.core.refs.branches),
            ("tag", self.core.refs.tags),
        ]
        for kind, read in reads:
            try:
                tips |= {f"{kind} {name}": tip for name, tip in read().items()}
            except IcechunkError as problem:
                self.findings.append(
                    error(
                        Code.REF_UNREADABLE,
                        f"refs/ ({kind})",
                        problem.message,
                        "restore or delete the reference file",
                    )
                )
        return tips

    def _snapshots(self, tips: Mapping[str, SnapshotId]) -> dict[SnapshotId, Snapshot]:
        """All reachable snapshots by the id that refers to them; damage ends a line."""
        found: dict[SnapshotId, Snapshot] = {}
        named_by: dict[SnapshotId, str] = {tip: name for name, tip in tips.items()}
        frontier = list(named_by)
        seen = set(frontier)
        loader = Loader(self.core.storage, self.core.refs)
        while frontier:
            loaded = run_all(lambda one: _attempt(loader.snapshot, one), frontier, at_once=_AT_ONCE)
            following: list[SnapshotId] = []
            for identity, snapshot in zip(frontier, loaded, strict=True):
                if isinstance(snapshot, MaintenanceError):
                    self._unreadable_snapshot(identity, named_by[identity], snapshot)
                    continue
                found[identity] = snapshot
                parent = self.core.refs.parent(snapshot)
                if parent is not None and parent not in seen:
                    seen.add(parent)
                    named_by[parent] = f"snapshot {self.core.format_id(identity)}"
                    following.append(parent)
            frontier = following
        self._check_circles(tips, found)
        self._check_tokens(tips, found)
        return found

    def _unreadable_snapshot(
        self, identity: SnapshotId, named_by: str, problem: MaintenanceError
    ) -> None:
        cause = problem.__cause__
        what = cause.message if isinstance(cause, IcechunkError) else problem.message
        key = self.core.refs.layout.snapshot(identity)
        self.findings.append(
            error(Code.SNAPSHOT_UNREADABLE, key, f"{named_by} refers to it, but: {what}", _RESET)
        )

    def _check_circles(
        self, tips: Mapping[str, SnapshotId], found: Mapping[SnapshotId, Snapshot]
    ) -> None:
        done: set[SnapshotId] = set()
        for tip in tips.values():
            line: set[SnapshotId] = set()
            current: SnapshotId | None = tip
            while current is not None and current in found and current not in done:
                if current in line:
                    self.findings.append(
                        error(
                            Code.HISTORY_CIRCLE,
                            self.core.refs.layout.snapshot(current),
                            "it is its own ancestor",
                            _RESET,
                        )
                    )
                    break
                line.add(current)
                current = self.core.refs.parent(found[current])
            done |= line

    def _check_tokens(
        self, tips: Mapping[str, SnapshotId], found: Mapping[SnapshotId, Snapshot]
    ) -> None:
        tokens = {identity: one.metadata.get(TOKEN_KEY) for identity, one in found.items()}
        counted = Counter(token for token in tokens.values() if isinstance(token, str))
        if max(counted.values(), default=0) < 2:
            return
        for name, tip in tips.items():
            landed = [
                Landed(self.core.format_id(identity), token)
                for identity in self._line(tip, found)
                if isinstance(token := tokens[identity], str)
            ]
            self.findings += check_once(landed, name)

    def _line(self, tip: SnapshotId, found: Mapping[SnapshotId, Snapshot]) -> Iterator[SnapshotId]:
        """A snapshot and its ancestors, each once, as far as they can be read."""
        passed: set[SnapshotId] = set()
        current: SnapshotId | None = tip
        while current is not None and current in found and current not in passed:
            passed.add(current)
            yield current
            current = self.core.refs.parent(found[current])

    def list_files(self) -> StoredFiles:
        """All stored files."""
        storage, layout = self.core.storage, self.core.refs.layout
        attributes = layout.attributes
        return StoredFiles(
            list_folder(storage, layout, layout.snapshots),
            list_folder(storage, layout, layout.transactions),
            list_folder(storage, layout, layout.manifests),
            list_folder(storage, layout, layout.chunks),
            Listing.empty("") if attributes is None else list_folder(storage, layout, attributes),
        )

    def _manifests(
        self, snapshots: Mapping[SnapshotId, Snapshot], stored: StoredFiles
    ) -> dict[ManifestId, Examined]:
        namer: dict[ManifestId, Snapshot] = {}
        for snapshot in snapshots.values():
            for node in snapshot.nodes.values():
                for ref in node.array.manifests if node.array is not None else ():
                    namer.setdefault(ref.id, snapshot)
        result: dict[ManifestId, Examined] = {}
        for identity, outcome in zip(namer, self.examine_all(namer, stored), strict=True):
            if isinstance(outcome, MaintenanceError):
                cause = outcome.__cause__
                what = cause.message if isinstance(cause, IcechunkError) else outcome.message
                where = self.core.refs.layout.manifest(identity)
                user = f"snapshot {self.core.format_id(namer[identity].id)} needs it, but: "
                self.findings.append(error(Code.MANIFEST_UNREADABLE, where, user + what, _RESET))
                continue
            result[identity] = outcome
            self.findings += outcome.findings
        return result

    def examine_all(
        self, namer: Mapping[ManifestId, Snapshot], stored: StoredFiles
    ) -> list[Examined | MaintenanceError]:
        """Check manifests, each for the snapshot that refers to it, in the given order."""
        loader = Loader(self.core.storage, self.core.refs)

        def examine(identity: ManifestId) -> Examined | MaintenanceError:
            manifest = _attempt(loader.manifest, identity)
            if isinstance(manifest, MaintenanceError):
                return manifest
            return self.examine(manifest, namer[identity], stored)

        return run_all(examine, list(namer), at_once=_AT_ONCE)

    def examine(self, manifest: Manifest, user: Snapshot, stored: StoredFiles) -> Examined:
        """Check one manifest for the snapshot that refers to it."""
        layout = self.core.refs.layout
        used = chunk_ids(manifest)
        chunks = with_aliases(self.core.storage, layout, stored.chunks, used)
        findings = [
            *check_chunks(manifest, chunks, layout),
            *(check_count(manifest, user, layout) if self.core.generation.lists_manifests else ()),
        ]
        return Examined(boxes(manifest), used, len(manifest), findings)

    def _check_snapshot(
        self,
        identity: SnapshotId,
        snapshot: Snapshot,
        all_snapshots: Mapping[SnapshotId, Snapshot],
        stored: StoredFiles,
        manifests: Mapping[ManifestId, Examined],
    ) -> None:
        layout = self.core.refs.layout
        where = layout.snapshot(snapshot.id)
        self.findings += check_manifest_list(snapshot, stored.manifests, layout)
        all_boxes = {one: examined.boxes for one, examined in manifests.items()}
        for node in snapshot.nodes.values():
            if node.array is not None:
                self.findings += check_array(node, all_boxes, snapshot, layout)
        parent = self.core.refs.parent(snapshot)
        if parent is None:
            return
        if parent in all_snapshots and all_snapshots[parent].flushed_at > snapshot.flushed_at:
            self.findings.append(
                warning(
                    Code.TIME_BACKWARDS,
                    where,
                    "it is older than its parent: a clock was wrong when one of them was written",
                    "keep the clocks of writers within 10 minutes; expire with care",
                )
            )
        keeps_logs = self.core.generation.keeps_logs
        if keeps_logs and not contains(stored.transactions.ids, of_bytes([identity]))[0]:
            self.findings.append(
                warning(
                    Code.LOG_MISSING,
                    layout.transaction(identity),
                    "the snapshot has no transaction log: it can be read, but not compared or "
                    "rebased over",
                    "commit without rebasing over it",
                )
            )

    def count_unreachable(
        self,
        snapshots: Mapping[SnapshotId, Snapshot],
        stored: StoredFiles,
        manifests: Mapping[ManifestId, Examined],
    ) -> None:
        """Report unreferenced files."""
        chunks = IdUnion()
        for examined in manifests.values():
            chunks.add(examined.chunks)
        named = of_bytes([*snapshots, *(snapshot.id for snapshot in snapshots.values())])
        pruned = (log for one in snapshots for log in self.core.refs.pruned_logs(one))
        logs = of_bytes([*snapshots, *(snapshot.id for snapshot in snapshots.values()), *pruned])
        listed = (one for snapshot in snapshots.values() for one in snapshot.manifest_files)
        attributes = {one for snapshot in snapshots.values() for one in snapshot.attribute_files}
        for listing, live in (
            (stored.snapshots, named),
            (stored.transactions, logs),
            (stored.manifests, of_bytes([*manifests, *listed])),
            (stored.attributes, of_bytes(attributes)),
            (stored.chunks, chunks.ids()),
        ):
            loose = listing.take(~contains(live, listing.ids))
            if len(loose):
                self.findings.append(
                    info(
                        Code.UNREACHABLE,
                        listing.prefix,
                        f"{len(loose)} files with {loose.total_bytes} bytes are not reachable",
                        "expected after expiring, resetting or failed commits; `garbage_collect` "
                        "frees them once they are old enough",
                    )
                )


def _attempt(load: Callable[[Identity], Loaded], identity: Identity) -> Loaded | MaintenanceError:
    try:
        return load(identity)
    except MaintenanceError as problem:
        return problem
