"""Check that every reference resolves: branches, snapshots, manifests, chunk files.

Reads all metadata that branches and tags reach, and lists every folder once; it reads no chunk and
asks for none one by one. Other than the collector it does not stop at damage but reports it. Run
beside a collector it may report what that one is deleting; run it again before believing it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_icechunk.exceptions import IcechunkError, MaintenanceError
from airflow_provider_icechunk.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.format.references import Extents
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.maintenance import checks
from airflow_provider_icechunk.repository.maintenance.findings import (
    Code,
    Finding,
    VerifyReport,
    error,
    info,
    warning,
    worst_first,
)
from airflow_provider_icechunk.repository.maintenance.idsets import Ids, IdUnion, contains, of_bytes
from airflow_provider_icechunk.repository.maintenance.listing import (
    Listing,
    list_folder,
    with_aliases,
)
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.repository.maintenance.reachable import chunk_ids
from airflow_provider_icechunk.storage.pool import run_all

_AT_ONCE = 16
_RESET = "restore the file from a backup, or reset the branches and delete the tags that need it"
_HIDING = frozenset({Code.REF_UNREADABLE, Code.SNAPSHOT_UNREADABLE, Code.MANIFEST_UNREADABLE})
"""Damage behind which files may be in use that seem to be garbage."""
Identity = TypeVar("Identity")
Loaded = TypeVar("Loaded")
Boxes = Mapping[NodeId, tuple[Extents, ...]]


def verify(engine: Engine) -> VerifyReport:
    """Check everything that branches and tags reach, and count what they do not."""
    return Verification(engine).run()


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
    """What is left of a manifest after it was checked."""

    boxes: Boxes
    chunks: Ids
    references: int
    findings: list[Finding]


@dataclass(slots=True)
class Verification:
    """One run. What lists and reads much can be done elsewhere by a subclass."""

    engine: Engine
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> VerifyReport:
        """Look at everything and report."""
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
            ("branch", self.engine.ledger.branches),
            ("tag", self.engine.ledger.tags),
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
        """All reachable snapshots by the id they are named by; damage ends a line."""
        found: dict[SnapshotId, Snapshot] = {}
        named_by: dict[SnapshotId, str] = {tip: name for name, tip in tips.items()}
        frontier = list(named_by)
        seen = set(frontier)
        loader = Loader(self.engine.storage, self.engine.ledger)
        while frontier:
            loaded = run_all(lambda one: _attempt(loader.snapshot, one), frontier, at_once=_AT_ONCE)
            following: list[SnapshotId] = []
            for identity, snapshot in zip(frontier, loaded, strict=True):
                if isinstance(snapshot, MaintenanceError):
                    self._unreadable_snapshot(identity, named_by[identity], snapshot)
                    continue
                found[identity] = snapshot
                parent = self.engine.ledger.parent(snapshot)
                if parent is not None and parent not in seen:
                    seen.add(parent)
                    named_by[parent] = f"snapshot {self.engine.show(identity)}"
                    following.append(parent)
            frontier = following
        self._check_circles(tips, found)
        return found

    def _unreadable_snapshot(
        self, identity: SnapshotId, named_by: str, problem: MaintenanceError
    ) -> None:
        cause = problem.__cause__
        what = cause.message if isinstance(cause, IcechunkError) else problem.message
        key = self.engine.ledger.layout.snapshot(identity)
        self.findings.append(
            error(Code.SNAPSHOT_UNREADABLE, key, f"{named_by} names it, but: {what}", _RESET)
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
                            self.engine.ledger.layout.snapshot(current),
                            "it is its own ancestor",
                            _RESET,
                        )
                    )
                    break
                line.add(current)
                current = self.engine.ledger.parent(found[current])
            done |= line

    def list_files(self) -> StoredFiles:
        """Everything that is stored."""
        storage, layout = self.engine.storage, self.engine.ledger.layout
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
                where = self.engine.ledger.layout.manifest(identity)
                user = f"snapshot {self.engine.show(namer[identity].id)} needs it, but: "
                self.findings.append(error(Code.MANIFEST_UNREADABLE, where, user + what, _RESET))
                continue
            result[identity] = outcome
            self.findings += outcome.findings
        return result

    def examine_all(
        self, namer: Mapping[ManifestId, Snapshot], stored: StoredFiles
    ) -> list[Examined | MaintenanceError]:
        """Check manifests, each for the snapshot that names it; in the given order."""
        loader = Loader(self.engine.storage, self.engine.ledger)

        def look(identity: ManifestId) -> Examined | MaintenanceError:
            manifest = _attempt(loader.manifest, identity)
            if isinstance(manifest, MaintenanceError):
                return manifest
            return self.examine(manifest, namer[identity], stored)

        return run_all(look, list(namer), at_once=_AT_ONCE)

    def examine(self, manifest: Manifest, user: Snapshot, stored: StoredFiles) -> Examined:
        """Check one manifest for the snapshot that names it."""
        layout = self.engine.ledger.layout
        used = chunk_ids(manifest)
        chunks = with_aliases(self.engine.storage, layout, stored.chunks, used)
        findings = [
            *checks.check_chunks(manifest, chunks, layout),
            *(
                checks.check_count(manifest, user, layout)
                if self.engine.generation.lists_manifests
                else ()
            ),
        ]
        return Examined(checks.boxes(manifest), used, len(manifest), findings)

    def _check_snapshot(
        self,
        identity: SnapshotId,
        snapshot: Snapshot,
        all_snapshots: Mapping[SnapshotId, Snapshot],
        stored: StoredFiles,
        manifests: Mapping[ManifestId, Examined],
    ) -> None:
        layout = self.engine.ledger.layout
        where = layout.snapshot(snapshot.id)
        self.findings += checks.check_manifest_list(snapshot, stored.manifests, layout)
        all_boxes = {one: examined.boxes for one, examined in manifests.items()}
        for node in snapshot.nodes.values():
            if node.array is not None:
                self.findings += checks.check_array(node, all_boxes, snapshot, layout)
        parent = self.engine.ledger.parent(snapshot)
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
        keeps_logs = self.engine.generation.keeps_logs
        if keeps_logs and not contains(stored.transactions.ids, of_bytes([identity]))[0]:
            self.findings.append(
                warning(
                    Code.LOG_MISSING,
                    layout.transaction(identity),
                    "the snapshot has no transaction log: it can be read, but not be compared or "
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
        """Report files that nothing names."""
        chunks = IdUnion()
        for examined in manifests.values():
            chunks.add(examined.chunks)
        named = of_bytes([*snapshots, *(snapshot.id for snapshot in snapshots.values())])
        listed = (one for snapshot in snapshots.values() for one in snapshot.manifest_files)
        attributes = {one for snapshot in snapshots.values() for one in snapshot.attribute_files}
        for listing, live in (
            (stored.snapshots, named),
            (stored.transactions, named),
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
