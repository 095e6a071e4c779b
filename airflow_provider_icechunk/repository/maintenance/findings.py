"""What `verify` reports: findings with a severity, a stable code, a place and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Something that a branch or tag needs is lost or wrong: reads fail or give wrong values."""
    WARNING = "warning"
    """Values are right here, but history or other readers may suffer."""
    INFO = "info"
    """Nothing wrong."""


class Code(StrEnum):
    """Stable, append-only codes of what can be found."""

    REF_UNREADABLE = "ref_unreadable"
    SNAPSHOT_UNREADABLE = "snapshot_unreadable"
    HISTORY_CIRCLE = "history_circle"
    TIME_BACKWARDS = "time_backwards"
    LOG_MISSING = "log_missing"
    MANIFEST_UNREADABLE = "manifest_unreadable"
    MANIFEST_SIZE = "manifest_size"
    MANIFEST_COUNT = "manifest_count"
    MANIFEST_LIST = "manifest_list"
    EXTENTS_TOO_SMALL = "extents_too_small"
    EXTENTS_OVERLAP = "extents_overlap"
    OUTSIDE_GRID = "outside_grid"
    CHUNK_MISSING = "chunk_missing"
    CHUNK_SHORT = "chunk_short"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    code: Code
    where: str
    """The key of the file, or the snapshot and path."""
    what: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """The finding in JSON values."""
        return {
            "severity": self.severity.value,
            "code": self.code.value,
            "where": self.where,
            "what": self.what,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at and what was found, worst first."""

    findings: tuple[Finding, ...]
    checked: Mapping[str, int]
    """How many of each kind of thing were checked."""

    @property
    def ok(self) -> bool:
        """Whether every reference from every branch and tag resolves."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """Findings that mean loss."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    def as_dict(self) -> dict[str, object]:
        """The report in JSON values."""
        return {
            "ok": self.ok,
            "checked": dict(self.checked),
            "findings": [finding.as_dict() for finding in self.findings],
        }


_ORDER = list(Severity)


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Distinct findings in the order of severity; otherwise as they were found."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: _ORDER.index(one.severity)))


def error(code: Code, where: str, what: str, remedy: str) -> Finding:
    """Something is lost or wrong."""
    return Finding(Severity.ERROR, code, where, what, remedy)


def warning(code: Code, where: str, what: str, remedy: str) -> Finding:
    """Something may be missed."""
    return Finding(Severity.WARNING, code, where, what, remedy)


def info(code: Code, where: str, what: str, remedy: str) -> Finding:
    """Nothing is wrong."""
    return Finding(Severity.INFO, code, where, what, remedy)
