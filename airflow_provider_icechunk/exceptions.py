"""The error tree: one base, classes by what a caller would do about them, stable kinds.

Every error of this package is an `IcechunkError`. Its class says how to handle it; its `kind` is a
code that never changes meaning and is safe to match on; its text says what is wrong, where, and
what to do next, and may change at any time. This module imports nothing of the package but the
official library's codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from airflow_provider_icechunk.error_kinds import OFFICIAL_CODES, ErrorKind


class Kind(StrEnum):
    """Stable, append-only codes. The meaning of a code never changes.

    A code also equals its counterparts in `ErrorKind`, the codes of the official library, so that
    `error.kind == ErrorKind.BRANCH_NOT_FOUND` holds whichever library raised the error.
    """

    INTERNAL = "internal"
    # not found
    REPOSITORY_NOT_FOUND = "repository_not_found"
    BRANCH_NOT_FOUND = "branch_not_found"
    TAG_NOT_FOUND = "tag_not_found"
    SNAPSHOT_NOT_FOUND = "snapshot_not_found"
    NODE_NOT_FOUND = "node_not_found"
    # already exists
    REPOSITORY_EXISTS = "repository_exists"
    BRANCH_EXISTS = "branch_exists"
    TAG_EXISTS = "tag_exists"
    TAG_WAS_DELETED = "tag_was_deleted"
    NODE_EXISTS = "node_exists"
    # input
    INVALID_NAME = "invalid_name"
    INVALID_KEY = "invalid_key"
    INVALID_ARGUMENT = "invalid_argument"
    INVALID_METADATA = "invalid_metadata"
    INVALID_CONFIG = "invalid_config"
    # session state
    READ_ONLY = "read_only"
    NO_CHANGES = "no_changes"
    SESSION_STATE = "session_state"
    CHUNKS_COLLECTED = "chunks_collected"
    # races
    CONFLICT = "conflict"
    REBASE_FAILED = "rebase_failed"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    CONFIG_CHANGED = "config_changed"
    FRAGMENT_OVERLAP = "fragment_overlap"
    FRAGMENT_MISMATCH = "fragment_mismatch"
    # code of a user
    TASK_FAILED = "task_failed"
    # storage
    STORAGE_FAILED = "storage_failed"
    STORAGE_UNREACHABLE = "storage_unreachable"
    STORAGE_DENIED = "storage_denied"
    STORAGE_THROTTLED = "storage_throttled"
    STORAGE_UNSAFE = "storage_unsafe"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CLOCK_SKEW = "clock_skew"
    OUTSIDE_ROOT = "outside_root"
    OBJECT_MISSING = "object_missing"
    # stored bytes
    FORMAT_INVALID = "format_invalid"
    FORMAT_UNSUPPORTED = "format_unsupported"
    LIMIT_EXCEEDED = "limit_exceeded"
    # virtual chunks
    VIRTUAL_DENIED = "virtual_denied"
    VIRTUAL_CHANGED = "virtual_changed"
    VIRTUAL_FAILED = "virtual_failed"
    # maintenance
    MAINTENANCE_REFUSED = "maintenance_refused"
    # data
    CHECK_FAILED = "check_failed"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) and not isinstance(other, Kind):
            code = str(other)
            return self.value == code or code in OFFICIAL_CODES.get(self.value, ())
        return self is other

    __hash__ = str.__hash__


class IcechunkError(Exception):
    """Base of everything this package raises; `kind` is stable, the text is not."""

    default_kind = Kind.INTERNAL
    message: str
    kind: Kind | ErrorKind

    def __init__(self, message: str, kind: Kind | ErrorKind | str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = _kind(kind, self.default_kind)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        code = OFFICIAL_CODES.get(self.kind, (self.kind,))[-1]
        return f'icechunk.{type(self).__name__}(message="{self.message}", kind="{code}")'

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class NotFoundError(IcechunkError, KeyError):
    """The named object does not exist. Create it, or correct the name. A `KeyError`, too.

    Raised with a kind that a subclass stands for, it is an instance of that subclass, so that class
    and kind cannot contradict each other.
    """

    default_kind = Kind.REPOSITORY_NOT_FOUND

    def __new__(cls, *_: Any, kind: Any = None) -> NotFoundError:
        """An instance of the subclass that stands for the kind."""
        fitting = cls
        if cls is NotFoundError:
            fitting = _BY_KIND.get(kind or cls.default_kind, cls)
        return super().__new__(fitting)


class RepositoryNotFoundError(NotFoundError):
    """There is no repository at this location."""


class RefNotFoundError(NotFoundError):
    """No branch or tag has this name."""

    default_kind = Kind.BRANCH_NOT_FOUND


class SnapshotNotFoundError(NotFoundError):
    """No snapshot has this id, or there was none at this time."""

    default_kind = Kind.SNAPSHOT_NOT_FOUND


class NodeNotFoundError(NotFoundError):
    """There is no such group or array in this version."""

    default_kind = Kind.NODE_NOT_FOUND


_BY_KIND: dict[Kind, type[NotFoundError]] = {
    Kind.REPOSITORY_NOT_FOUND: RepositoryNotFoundError,
    Kind.BRANCH_NOT_FOUND: RefNotFoundError,
    Kind.TAG_NOT_FOUND: RefNotFoundError,
    Kind.SNAPSHOT_NOT_FOUND: SnapshotNotFoundError,
    Kind.NODE_NOT_FOUND: NodeNotFoundError,
}


class AlreadyExistsError(IcechunkError):
    """The named object already exists. Use it, or choose another name."""

    default_kind = Kind.REPOSITORY_EXISTS


class InvalidInputError(IcechunkError, ValueError):
    """The arguments are invalid. Correct the call."""

    default_kind = Kind.INVALID_ARGUMENT


class NoJsonError(InvalidInputError, TypeError):
    """A value that JSON cannot express was to be stored. Also a `TypeError`, as officially."""

    default_kind = Kind.INVALID_METADATA


class SessionStateError(IcechunkError):
    """The session's state does not allow this call. Open another, or finish this one."""

    default_kind = Kind.SESSION_STATE


class ForkError(SessionStateError, TypeError):
    """Only the session a fork was made from can do this. A `TypeError`, too."""


class ReadOnlyError(SessionStateError, ValueError):
    """A write to something read-only. Also a `ValueError`, as raised by Zarr's stores."""

    default_kind = Kind.READ_ONLY


class ConflictError(IcechunkError):
    """Another writer moved the branch first. Rebase, then commit again.

    One text is the message; two are the parents, expected and found, as the official class takes
    them.
    """

    default_kind = Kind.CONFLICT

    def __init__(
        self,
        *texts: str | None,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
        message: str | None = None,
        kind: Kind | ErrorKind | str | None = None,
    ) -> None:
        if len(texts) == 1:
            message = texts[0]
        elif texts:
            given = (*texts, None, None)
            expected_parent, actual_parent = given[:2]
            message, kind = given[2] or message, given[3] or kind
        if message is None:
            message = (
                f"Failed to commit, expected parent: {expected_parent}, "
                f"actual parent: {actual_parent}"
            )
        super().__init__(message, kind)
        self.expected_parent = expected_parent
        self.actual_parent = actual_parent


class RebaseFailedError(ConflictError):
    """Both sides made conflicting changes that the solver may not resolve. A person must decide.

    `RebaseFailedError(snapshot, conflicts)` makes its own message.
    """

    default_kind = Kind.REBASE_FAILED

    def __init__(
        self,
        text: str,
        conflicts: Sequence[Any],
        *,
        snapshot: str | None = None,
        kind: Kind | ErrorKind | str | None = None,
    ) -> None:
        if snapshot is None:
            snapshot = text
            text = f"Rebase failed on snapshot {snapshot}: {len(conflicts)} conflicts found"
        super().__init__(text, kind=kind)
        self.snapshot = snapshot
        self.conflicts = list(conflicts)


class FragmentError(IcechunkError):
    """Workers' results do not fit each other or this session. Nothing was merged."""

    default_kind = Kind.FRAGMENT_MISMATCH


class TaskError(IcechunkError):
    """A function of the user failed in a task of a job. Nothing was committed."""

    default_kind = Kind.TASK_FAILED


class StorageError(IcechunkError):
    """The storage failed or refused. Retrying may help."""

    default_kind = Kind.STORAGE_FAILED


class AccessDeniedError(StorageError):
    """The storage denied access with these credentials. Retrying will not help."""

    default_kind = Kind.STORAGE_DENIED


class UnsafeStorageError(StorageError):
    """The storage lacks the guarantees that writers need. Use another, or opt out explicitly."""

    default_kind = Kind.STORAGE_UNSAFE


class OutcomeUnknownError(StorageError):
    """A write may or may not have landed. Read before writing again; delete nothing."""

    default_kind = Kind.OUTCOME_UNKNOWN


class FormatError(IcechunkError):
    """Stored bytes do not conform to the specification. Retrying will not help."""

    default_kind = Kind.FORMAT_INVALID


class UnsupportedError(IcechunkError):
    """The repository is valid but uses a feature that is not supported."""

    default_kind = Kind.FORMAT_UNSUPPORTED


class VirtualChunkError(IcechunkError):
    """A virtual chunk could not be read from its location."""

    default_kind = Kind.VIRTUAL_FAILED


class VirtualAccessDeniedError(VirtualChunkError):
    """No grant covers this location. Authorize it when opening the repository."""

    default_kind = Kind.VIRTUAL_DENIED


class VirtualChunkChangedError(VirtualChunkError):
    """The external object has changed since it was referenced. Recreate the reference."""

    default_kind = Kind.VIRTUAL_CHANGED


class MaintenanceError(IcechunkError):
    """Maintenance stopped; nothing was deleted after that point."""

    default_kind = Kind.MAINTENANCE_REFUSED


class InternalError(IcechunkError):
    """A defect of this package. Please report it."""


class CheckFailedError(IcechunkError):
    """Data failed its checks. `report` has every check with its value and limit."""

    default_kind = Kind.CHECK_FAILED

    def __init__(
        self,
        message: str,
        *,
        report: dict[str, Any] | None = None,
        kind: Kind | ErrorKind | str | None = None,
    ) -> None:
        super().__init__(message, kind)
        self.report = report or {}


def _kind(given: Kind | ErrorKind | str | None, default: Kind) -> Kind | ErrorKind:
    if given is None:
        return default
    if isinstance(given, (Kind, ErrorKind)):
        return given
    return Kind(given) if given in set(map(str, Kind)) else ErrorKind(given)


def _rebuild(
    cls: type[IcechunkError], args: tuple[Any, ...], state: dict[str, Any]
) -> IcechunkError:
    # Of exactly this class: `NotFoundError` would choose one by its kind.
    error: IcechunkError = Exception.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


SessionError = SessionStateError
"""The former name, for values that were pickled under it."""
