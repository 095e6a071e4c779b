"""The expiry that was shown is the one that is carried out, whatever others do in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.maintenance import GENERATIONS, Clock, lived_in, write

from airflow_provider_icechunk.engine.maintenance.retention import ExpirationPlan, RetentionPolicy
from airflow_provider_icechunk.engine.repository import Repository


def history(repo: Repository) -> set[str]:
    """Every snapshot that a branch or a tag still has in its history."""
    fresh = Repository.open(repo.storage)
    found = {info.id for name in fresh.list_branches() for info in fresh.ancestry(branch=name)}
    return found | {info.id for name in fresh.list_tags() for info in fresh.ancestry(tag=name)}


def named(repo: Repository) -> set[str]:
    """What branches and tags name: reported as expired by age, and kept."""
    fresh = Repository.open(repo.storage)
    return {fresh.lookup_branch(name) for name in fresh.list_branches()} | {
        fresh.lookup_tag(name) for name in fresh.list_tags()
    }


def opened(generation: str) -> tuple[Repository, dict[str, str], Clock]:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    return Repository.open(storage, world=clock.world()), ids, clock


def told(repo: Repository, plan: ExpirationPlan) -> set[str]:
    return {repo.core.format_id(one) for one in plan.released}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_was_shown_is_what_is_carried_out(generation: str) -> None:
    repo, _, clock = opened(generation)
    policy = RetentionPolicy(clock.wait(days=30), 2, True, True)
    plan = repo.plan_expiration(policy)
    assert repo.carry_out_expiration(plan).as_dict() == plan.as_dict()
    assert repo.plan_expiration(policy).is_empty


@pytest.mark.parametrize("generation", GENERATIONS)
def test_snapshots_that_were_not_shown_stay_when_others_commit_meanwhile(generation: str) -> None:
    repo, _, clock = opened(generation)
    if generation == "2":
        repo.delete_tag("v1")
    before = history(repo)
    plan = repo.plan_expiration(RetentionPolicy(clock.wait(days=30), 2))
    assert told(repo, plan)
    # By the policy alone, two more commits push two more snapshots out of the two that are kept.
    added = {write(repo, "main", 0, f"late {number}") for number in range(2)}
    done = repo.carry_out_expiration(plan)
    assert told(repo, done) <= told(repo, plan)
    assert history(repo) >= (before - told(repo, plan)) | added
    assert not told(repo, done) & history(repo) - named(repo)
    assert repo.verify().ok


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_branch_that_moved_after_the_plan_stays_and_is_not_reported_as_deleted(
    generation: str,
) -> None:
    repo, _, clock = opened(generation)
    plan = repo.plan_expiration(RetentionPolicy(clock.wait(days=30), delete_expired_branches=True))
    assert [ref.name for ref in plan.refs if ref.delete] == ["side"]
    late = write(repo, "side", 5, "late")
    done = repo.carry_out_expiration(plan)
    assert [ref.name for ref in done.refs if ref.delete] == []
    assert Repository.open(repo.storage).lookup_branch("side") == late
    assert told(repo, done) <= told(repo, plan)
    assert not told(repo, done) & history(repo) - named(repo)
    assert repo.verify().ok


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_branch_that_somebody_else_deleted_is_not_reported_as_deleted(generation: str) -> None:
    repo, _, clock = opened(generation)
    plan = repo.plan_expiration(RetentionPolicy(clock.wait(days=30), delete_expired_branches=True))
    repo.delete_branch("side")
    done = repo.carry_out_expiration(plan)
    assert "side" not in {ref.name for ref in done.refs}
    assert told(repo, done) <= told(repo, plan)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_ids_returned_are_those_of_the_expiry_that_happened(
    generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_icechunk.engine.maintenance import expire

    repo, _, clock = opened(generation)
    monkeypatch.setattr(
        expire,
        "make_expiration_plan",
        _then(expire.make_expiration_plan, lambda: write(repo, "side", 5, "late")),
    )
    gone = repo.expire_snapshots(clock.wait(days=30), delete_expired_branches=True)
    assert gone
    assert not gone & history(repo) - named(repo)


def _then(
    plan: Callable[..., ExpirationPlan], act: Callable[[], object]
) -> Callable[..., ExpirationPlan]:
    """Let somebody else act right after the plan was made."""

    def planned(*args: object) -> ExpirationPlan:
        made = plan(*args)
        act()
        return made

    return planned
