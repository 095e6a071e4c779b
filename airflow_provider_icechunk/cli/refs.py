"""`branch` and `tag`: list, create, delete and move them."""

from __future__ import annotations

from airflow_provider_icechunk.engine.pipelines.versions import describe, find_version, read_heads

from . import render
from .render import first_line, plain, show_moment
from .screen import Report, Task


def list_branches(task: Task) -> Report:
    """List branches and their heads."""
    return _listing(task, "branches")


def create_branch(task: Task) -> Report:
    """Create a branch at a version."""
    repository = task.open()
    target = find_version(repository, task.args.at)
    repository.create_branch(task.args.name, target)
    return _done("created", "branch", task.args.name, snapshot_id=target)


def delete_branch(task: Task) -> Report:
    """Delete a branch; prints where it was, so that it can be recreated."""
    repository = task.open()
    was = repository.lookup_branch(task.args.name)
    repository.delete_branch(task.args.name)
    return _done("deleted", "branch", task.args.name, was=was)


def reset_branch(task: Task) -> Report:
    """Move a branch to another version; prints where it was, so that it can be moved back."""
    repository = task.open()
    was = repository.lookup_branch(task.args.name)
    expected = repository.read_snapshot_id(getattr(task.args, "from") or was)
    target = find_version(repository, task.args.to)
    repository.reset_branch(task.args.name, target, from_snapshot_id=expected)
    return _done("moved", "branch", task.args.name, snapshot_id=target, was=expected)


def list_tags(task: Task) -> Report:
    """List tags and their snapshots."""
    return _listing(task, "tags")


def create_tag(task: Task) -> Report:
    """Create a tag at a version."""
    repository = task.open()
    target = find_version(repository, task.args.at)
    repository.create_tag(task.args.name, target)
    return _done("created", "tag", task.args.name, snapshot_id=target)


def delete_tag(task: Task) -> Report:
    """Delete a tag; its name cannot be reused."""
    repository = task.open()
    was = repository.lookup_tag(task.args.name)
    repository.delete_tag(task.args.name)
    return _done("deleted", "tag", task.args.name, was=was)


def _listing(task: Task, what: str) -> Report:
    repository = task.open()
    heads = read_heads(repository)
    names = heads.branches if what == "branches" else heads.tags
    entries, rows = [], []
    for name, tip in sorted(names.items()):
        info = repository.lookup_snapshot(tip)
        entries.append({"name": name, "snapshot": describe(info, heads.commit(info))})
        moment = show_moment(info.written_at)
        rows.append((plain(name), info.id, moment, first_line(info.message)))
    body = [render.table(("name", "snapshot", "written", "message"), rows)]
    return Report({what: entries}, body if rows else [render.line(f"no {what}")])


def _done(
    verb: str, kind: str, name: str, *, snapshot_id: str | None = None, was: str | None = None
) -> Report:
    text = f"{verb} {kind} {name}"
    if snapshot_id is not None:
        text += f" {'to' if verb == 'moved' else 'at'} {snapshot_id}"
    if was is not None:
        text += f" (it was at {was})"
    result = {"action": verb, kind: name, "snapshot_id": snapshot_id, "was": was}
    return Report(result, [render.line(text)])
