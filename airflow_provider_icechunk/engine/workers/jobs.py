"""The folder where the writers of one session leave their results, next to the data.

Readers of the format ignore it. A job is one attempt to fill one session; results of an earlier
attempt are in another folder and cannot be merged by mistake. Each writer puts one complete object,
so a writer that runs again replaces its earlier result.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.exceptions import FormatError, FragmentError, InvalidInputError, Kind

from .codec import Fragment, decode_fragment, encode_fragment
from .releases import RELEASE

ROOT = "jobs"
_FRAGMENT = ".fragment"
_RESULT = ".json"
_WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LARGEST_RESULT = 1 << 20


def job_key(job: str) -> str:
    """The folder of a job, whatever its name contains."""
    return f"{ROOT}/{hashlib.sha256(job.encode()).hexdigest()[:40]}"


def is_writer_name(name: str) -> bool:
    """Whether something can be stored for a writer of this name."""
    return _WRITER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Fragments and reports of the writers of one job."""

    storage: Storage
    job: str

    @property
    def prefix(self) -> str:
        """The prefix of all keys of the job."""
        return f"{job_key(self.job)}/"

    def put_fragment(self, writer: str, fragment: Fragment) -> str:
        """Store the whole result of a writer and return its key; replaces an earlier one."""
        if fragment.job != self.job:
            raise FragmentError(
                f"the fragment of {writer!r} belongs to job {fragment.job!r}, not to {self.job!r}"
            )
        return self._put(writer, _FRAGMENT, encode_fragment(fragment))

    def put_result(self, writer: str, result: Mapping[str, object]) -> str:
        """Store a small JSON report of a writer and return its key."""
        stamped = {**result, RELEASE: __version__}
        return self._put(writer, _RESULT, json.dumps(stamped, sort_keys=True).encode())

    def writers(self) -> list[str]:
        """Names of the writers that left a fragment, sorted."""
        return list(self._names(_FRAGMENT))

    def reporters(self) -> list[str]:
        """Names of the writers that left a report, sorted."""
        return list(self._names(_RESULT))

    def fragments(self, writers: Sequence[str] | None = None) -> list[Fragment]:
        """The fragments of the job, or those of `writers`, all of which must be there."""
        present = self.writers()
        wanted = present if writers is None else list(writers)
        missing = sorted(set(wanted) - set(present))
        if missing:
            raise FragmentError(
                f"{', '.join(missing)} left no fragment in {self.storage.location}/{self.prefix}; "
                f"writers with fragments: {', '.join(present) or 'none'}. Run the missing "
                "writers again"
            )
        return [self._fragment(writer) for writer in wanted]

    def result(self, writer: str) -> dict[str, object] | None:
        """The report of a writer; `None` if it left none."""
        key = self._key(writer, _RESULT)
        stored = self.storage.get(key)
        if stored is None:
            return None
        try:
            value = json.loads(stored.data) if len(stored.data) <= _LARGEST_RESULT else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise FormatError(f"{key}: not the report of a writer")
        return value

    def _names(self, suffix: str) -> Iterator[str]:
        for listed in self.storage.scan(self.prefix):
            name = listed.key.removeprefix(self.prefix)
            if name.endswith(suffix) and _WRITER.fullmatch(name.removesuffix(suffix)):
                yield name.removesuffix(suffix)

    def _fragment(self, writer: str) -> Fragment:
        key = self._key(writer, _FRAGMENT)
        stored = self.storage.get(key)
        if stored is None:
            raise FragmentError(f"{key} vanished while it was read; run {writer!r} again")
        return decode_fragment(stored.data, where=key)

    def _put(self, writer: str, suffix: str, data: bytes) -> str:
        key = self._key(writer, suffix)
        self.storage.put(key, data, expect=Anything())
        self.storage.settle()
        return key

    def _key(self, writer: str, suffix: str) -> str:
        if not is_writer_name(writer):
            raise InvalidInputError(
                f"{writer!r} cannot name a writer: use letters, digits, '-' and '_', at most 100",
                kind=Kind.INVALID_NAME,
            )
        return f"{self.prefix}{writer}{suffix}"
