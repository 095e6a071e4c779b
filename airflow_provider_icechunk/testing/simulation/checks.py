"""Whether the stored state keeps the promises. The individual checks are those of `verify`."""

from __future__ import annotations

from itertools import pairwise

from airflow_provider_icechunk.engine.maintenance.findings import (
    Landed,
    Severity,
    check_acknowledged,
)
from airflow_provider_icechunk.engine.repository import Repository

from .ledger import Ledger, ViolationError, Witness
from .model import difference, seen

ROOTED = 1


def check_repository(repo: Repository, ledger: Ledger, witness: Witness, oldest: int) -> None:
    """Raise `ViolationError` for the first promise that is broken.

    :param oldest: time in microseconds since which nothing may have expired.
    """
    _check_moves(witness)
    _check_commits(ledger, witness)
    _check_history(repo, witness, oldest)
    _check_references(repo)
    _check_contents(repo, witness)


def _check_moves(witness: Witness) -> None:
    """Every commit to `main` has the previous one as its parent."""
    heads = witness.heads["main"]
    for before, now in pairwise(heads):
        parent = witness.seen[now].parent
        if parent != before:
            raise ViolationError(f"main moved from {before} to {now}, whose parent is {parent}")


def _check_commits(ledger: Ledger, witness: Witness) -> None:
    landed = [
        Landed(one, intent)
        for one in witness.heads["main"]
        if (intent := witness.seen[one].intent) is not None
    ]
    acknowledged = {
        intent.name: intent.acknowledged
        for intent in ledger.intents.values()
        if intent.branch == "main"
    }
    for snapshot in ledger.told:
        if snapshot not in witness.heads["main"]:
            raise ViolationError(f"{snapshot} was acknowledged and never was on main")
    for finding in check_acknowledged(landed, acknowledged, "branch main"):
        raise ViolationError(f"{finding.where}: {finding.what}")


def _check_history(repo: Repository, witness: Witness, oldest: int) -> None:
    """The rest of a history is in order, and only old commits are missing."""
    heads = witness.heads["main"]
    places = {snapshot: place for place, snapshot in enumerate(heads)}
    history = list(repo.ancestry(branch="main"))
    if history[0].id != heads[-1]:
        raise ViolationError(f"main is at {history[0].id}, but {heads[-1]} was committed last")
    known = [places[info.id] for info in history if info.id in places]
    if known != sorted(known, reverse=True) or (
        len(known) > 1 and known[:-ROOTED] != list(range(known[0], known[-ROOTED - 1] - 1, -1))
    ):
        raise ViolationError(f"the history of main has the commits {known}, newest first")
    left = {info.id for info in history}
    gone = [one for one in heads if one not in left and witness.seen[one].written > oldest]
    if gone:
        raise ViolationError(f"commits expired that were too young: {gone}")
    times = [info.written_at for info in history]
    if any(newer <= older for newer, older in pairwise(times)):
        raise ViolationError(f"times do not increase along main: {times}")


def _check_references(repo: Repository) -> None:
    report = repo.verify()
    for finding in report.findings:
        if finding.severity is not Severity.INFO:
            raise ViolationError(f"{finding.code}: {finding.where}: {finding.what}")


def _check_contents(repo: Repository, witness: Witness) -> None:
    versions = {f"branch {name}": repo.lookup_branch(name) for name in repo.list_branches()}
    versions |= {f"tag {name}": repo.lookup_tag(name) for name in repo.list_tags()}
    for name, snapshot in versions.items():
        expected = witness.state(snapshot)
        if expected is None:
            continue
        problem = difference(expected, seen(repo.readonly_session(snapshot_id=snapshot)))
        if problem is not None:
            raise ViolationError(f"{name} at {snapshot}: {problem}")
