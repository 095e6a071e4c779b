"""A storage back end as a third party would write it: objects are rows of an SQLite file."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import SplitResult

from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    ByteRange,
    Data,
    Deleted,
    Exactly,
    Expectation,
    Fetched,
    Listed,
    Lost,
    Put,
    PutOutcome,
    Storage,
    Version,
    Written,
    check_key,
    check_prefix,
    put_one_by_one,
    resolve,
)
from airflow_provider_icechunk.engine.storage.location import AccessOptions, Scheme

TABLE = "CREATE TABLE IF NOT EXISTS object (key PRIMARY KEY, data, version, micros) WITHOUT ROWID"


class SqliteStorage:
    def __init__(self, path: Path) -> None:
        self.path = path
        with self._connected() as db:
            db.execute(TABLE)

    @property
    def location(self) -> str:
        return f"sqlite://{self.path}"

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as db:
            yield db

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        check_key(key)
        with self._connected() as db:
            row = db.execute("SELECT data, version FROM object WHERE key = ?", [key]).fetchone()
        if row is None:
            return None
        start, stop = resolve(byte_range, len(row[0]))
        return Fetched(row[0][start:stop], Version(row[1]))

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        return [self.get(key, byte_range) for key, byte_range in requests]

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        row = [check_key(key), bytes(data), uuid.uuid4().hex, _micros(self.now())]
        with self._connected() as db:
            match expect:
                case Anything():
                    verb, where, given = "REPLACE", "", []
                case Absent():
                    verb, where, given = "INSERT OR IGNORE", "", []
                case Exactly(version):
                    verb = "REPLACE"
                    where = "WHERE EXISTS (SELECT 1 FROM object WHERE key = ? AND version = ?)"
                    given = [key, str(version)]
            text = f"{verb} INTO object SELECT ?, ?, ?, ? {where}"
            # One statement: SQLite lets no one else write between the condition and the row.
            written = db.execute(text, [*row, *given]).rowcount
        return Written(Version(row[2])) if written else Lost()

    def put_many(self, puts: Sequence[Put]) -> None:
        put_one_by_one(self, puts)

    def settle(self) -> None:
        """SQLite answers when the row is durable."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        check_prefix(prefix)
        with self._connected() as db:
            rows = db.execute(
                "SELECT key, length(data), micros FROM object "
                "WHERE substr(key, 1, ?) = ? ORDER BY key",
                [len(prefix), prefix],
            ).fetchall()
        return (Listed.at(key, size, _moment(micros)) for key, size, micros in rows)

    def list_folders(self, prefix: str) -> list[str]:
        tails = (listed.key.removeprefix(prefix) for listed in self.scan(prefix))
        return sorted({tail.split("/", 1)[0] for tail in tails if "/" in tail})

    def head(self, key: str) -> Listed | None:
        return next((one for one in self.scan(check_key(key)) if one.key == key), None)

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        rows = [[check_key(key)] for key in keys]
        with self._connected() as db:
            db.executemany("DELETE FROM object WHERE key = ?", rows)
        return Deleted(tuple(keys))

    def now(self) -> datetime:
        return datetime.now(UTC)

    def check_conditional_writes(self) -> None:
        """The conditions are in the statements above."""


def _micros(moment: datetime) -> int:
    return int(moment.timestamp() * 1e6)


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)


def _open(url: SplitResult, _: AccessOptions) -> Storage | None:
    return SqliteStorage(Path(url.path)) if url.path.endswith(".db") else None


SCHEME = Scheme("sqlite:///absolute/file.db", _open)
