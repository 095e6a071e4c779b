"""Values shared by the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_icechunk.api import Repository, local_filesystem_storage


@dataclass(frozen=True)
class Answer:
    """The output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Made:
    """A repository and the ids of its snapshots by message."""

    path: Path
    ids: dict[str, str]

    @property
    def repository(self) -> Repository:
        return Repository.open(local_filesystem_storage(str(self.path)))

    def named(self, text: str) -> str:
        """`text` with every snapshot id replaced by the first word of its message."""
        for message, identity in self.ids.items():
            text = text.replace(identity, message.split()[0])
        return text


Command = Callable[..., Answer]
