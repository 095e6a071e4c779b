"""What only repositories of generation `2` have: operations log, metadata, status, features."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.generations.detect import REPO_KEY
from airflow_provider_icechunk.format.generations.v2.flags import Feature
from airflow_provider_icechunk.format.generations.v2.repo_info import (
    Items,
    decode_items,
    encode_items,
)
from airflow_provider_icechunk.format.generations.v2.repo_updates import (
    SetFlag,
    SetMetadata,
    SetStatus,
)
from airflow_provider_icechunk.format.snapshot import Metadata
from airflow_provider_icechunk.repository.async_twins import in_thread
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger, newer_ledger
from airflow_provider_icechunk.repository.operations_log import (
    FeatureFlag,
    RepoStatus,
    Update,
    feature_flags,
)


class Operations:
    """The whole repository's log and settings. Mixed into repositories."""

    _engine: Engine

    def ops_log(self) -> Iterator[Update]:
        """What happened to the repository, newest first."""
        return map(Update.of, self._newer_ledger().operations())

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """`ops_log` that reads each part in a thread."""
        entries = self.ops_log()
        while (entry := await in_thread(next, entries, None)) is not None:
            yield entry

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository itself."""
        return self.get_metadata()

    def get_metadata(self) -> dict[str, Any]:
        """The metadata of the repository itself."""
        return dict(decode_items(self._newer_ledger().info().metadata, where=REPO_KEY))

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository."""
        items = encode_items(metadata)
        self._newer_ledger().update(SetMetadata(lambda _: items))

    def update_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set some names of the metadata and leave the others; returns all of it."""
        items = dict(encode_items(metadata))
        merged: dict[str, bytes] = {}

        def merge(stored: Items) -> Items:
            merged.clear()
            merged.update({**dict(stored), **items})
            return tuple(sorted(merged.items(), key=lambda item: item[0].encode()))

        self._newer_ledger().update(SetMetadata(merge))
        found: Metadata = decode_items(tuple(merged.items()), where=REPO_KEY)
        return dict(found)

    @property
    def status(self) -> RepoStatus:
        """Whether the repository may be changed."""
        return self.get_status()

    def get_status(self) -> RepoStatus:
        """Whether the repository may be changed."""
        return RepoStatus.of(self._newer_ledger().info().status)

    def set_status(self, status: RepoStatus) -> None:
        """Say whether the repository may be changed; also works while it may not."""
        self._newer_ledger().update(SetStatus(status.stored(self._engine.world.now())))

    def feature_flags(self) -> list[FeatureFlag]:
        """All features and how they are set."""
        return feature_flags(self._newer_ledger().info())

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """Features that may be used."""
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """Features that may not be used."""
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Turn a feature on or off; `None` leaves it to its default."""
        names = {feature.name.lower(): feature for feature in Feature}
        if name not in names:
            raise InvalidInputError(f"there is no feature {name!r}; there are: {', '.join(names)}")
        self._newer_ledger().update(SetFlag(names[name].value, setting))

    def _newer_ledger(self) -> V2Ledger:
        what = "an operations log, metadata, status or features"
        return newer_ledger(self._engine.ledger, what)
