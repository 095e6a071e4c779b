"""Wherever a snapshot id is typed, its case does not matter; what is told has one spelling."""

from __future__ import annotations

import pytest
from support.maintenance import GENERATIONS, lived_in
from support.typed_ids import spellings

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.exceptions import ConflictError


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_method_takes_an_id_in_any_spelling(generation: str) -> None:
    storage, ids = lived_in(generation)
    repo = Repository.open(storage)
    second, third = ids["second"], ids["third"]
    for number, typed in enumerate(spellings(third)):
        assert repo.lookup_snapshot(typed).id == third
        assert repo.readonly_session(snapshot_id=typed).snapshot_id == third
        assert next(iter(repo.ancestry(snapshot_id=typed))).id == third
        changes = repo.diff(from_snapshot_id=spellings(second)[number], to_snapshot_id=typed)
        assert changes.updated_chunks
        repo.create_branch(f"b{number}", typed)
        assert repo.lookup_branch(f"b{number}") == third
        repo.reset_branch(f"b{number}", spellings(second)[number], from_snapshot_id=typed)
        assert repo.lookup_branch(f"b{number}") == second
        with pytest.raises(ConflictError, match=third):
            repo.reset_branch(f"b{number}", typed, from_snapshot_id=typed)
        repo.create_tag(f"t{number}", typed)
        assert repo.lookup_tag(f"t{number}") == third
        assert repo.list_manifest_files(typed) == repo.list_manifest_files(third)
        assert repo.inspect_snapshot(typed) == repo.inspect_snapshot(third)
        assert repo.read_snapshot_id(typed) == third
    for file in repo.list_manifest_files(third):
        for typed in spellings(file.id):
            assert repo.inspect_manifest(typed)["id"] == file.id
