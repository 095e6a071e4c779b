"""Measurements as ratios, verdicts, a table and a page."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.model import (
    OFFICIAL,
    OURS,
    OURS_UNSYNCED,
    TITLES,
    Goal,
    Measure,
    Measurement,
    Workload,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """The results of one contender for one workload at one size, over all rounds."""

    contender: str
    size: int
    rounds: int
    seconds: float
    best_seconds: float
    cpu_seconds: float
    peak_bytes: float
    requests: float = 0
    depth: float = 0
    skipped: str = ""

    def value(self, measure: Measure) -> float:
        """The median that a goal refers to."""
        return self.seconds if measure == "seconds" else self.peak_bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and what was measured for it; `ratio` is missing if one of the two was skipped."""

    workload: str
    size: int
    goal: Goal
    against: str
    ratio: float | None

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached."""
        return None if self.ratio is None else self.ratio <= self.goal.at_most


def figures(measurements: Iterable[Measurement]) -> dict[tuple[str, int, str], Figure]:
    """Medians, by workload, size and contender, in the order of the measurements."""
    groups: dict[tuple[str, int, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.workload, one.size, one.contender), []).append(one)
    return {key: _figure(group) for key, group in groups.items()}


def _figure(group: Sequence[Measurement]) -> Figure:
    first = group[0]
    skipped = next((one.skipped for one in group if one.skipped), "")
    if skipped:
        return Figure(first.contender, first.size, 0, 0, 0, 0, 0, skipped=skipped)
    return Figure(
        contender=first.contender,
        size=first.size,
        rounds=len(group),
        seconds=median(one.seconds for one in group),
        best_seconds=min(one.seconds for one in group),
        cpu_seconds=median(one.cpu_seconds for one in group),
        peak_bytes=median(one.peak_bytes for one in group),
        requests=median(one.requests for one in group),
        depth=median(one.depth for one in group),
    )


def verdicts(
    workloads: Sequence[Workload], found: Mapping[tuple[str, int, str], Figure]
) -> list[Verdict]:
    """Every goal at the largest size that was measured."""
    results = []
    for workload in workloads:
        sizes = [size for name, size, _ in found if name == workload.name]
        if not sizes:
            continue
        size = max(sizes)
        for goal in workload.goals:
            for against in goal.against:
                ours, theirs = (found.get((workload.name, size, c)) for c in (goal.ours, against))
                ratio = _ratio(ours, theirs, goal.measure)
                results.append(Verdict(workload.name, size, goal, against, ratio))
    return results


def _ratio(ours: Figure | None, theirs: Figure | None, measure: Measure) -> float | None:
    if ours is None or theirs is None or ours.skipped or theirs.skipped:
        return None
    return ours.value(measure) / theirs.value(measure)


def behind(
    workloads: Sequence[Workload], found: Mapping[tuple[str, int, str], Figure]
) -> list[tuple[str, ...]]:
    """Lines for every size at which ours takes longer than allowed, against an official release."""
    return [
        (
            workload.titled(size),
            TITLES[against],
            f"{ratio:.2f}",
            f"<= {workload.at_any_size:g}",
        )
        for workload in workloads
        for size in sorted({size for name, size, _ in found if name == workload.name})
        for against in OFFICIAL
        if (ratio := _against_official(workload, size, against, found)) is not None
        and ratio > workload.at_any_size
    ]


BEHIND_HEADER = ("workload", "ours / it", "measured", "allowed")


def summary(
    workloads: Sequence[Workload], found: Mapping[tuple[str, int, str], Figure]
) -> list[str]:
    """A summary of all workloads."""
    far = [
        [_against_official(workload, max(sizes), against, found) for against in OFFICIAL]
        for workload in workloads
        if workload.name.startswith(_FAR)
        and (sizes := [size for name, size, _ in found if name == workload.name])
    ]
    measured = [[ratio for ratio in ratios if ratio is not None] for ratios in far]
    halves = sum(bool(ratios) and max(ratios) <= _HALF for ratios in measured)
    text = (
        f"Of {len(far)} workloads that are 20 ms away, {halves} take at most {_HALF:g} of the time "
        f"of every official release that was measured (goal: {_HALVES} of {_ALL_FAR})."
    )
    return [text] if far else []


def _against_official(
    workload: Workload, size: int, against: str, found: Mapping[tuple[str, int, str], Figure]
) -> float | None:
    ours, theirs = (found.get((workload.name, size, who)) for who in (OURS, against))
    return _ratio(ours, theirs, "seconds")


def figure_rows(
    workload: Workload, found: Mapping[tuple[str, int, str], Figure]
) -> list[tuple[str, ...]]:
    """Lines of the table of one workload: one for each size and contender."""
    rows: list[tuple[str, ...]] = []
    for (name, size, contender), one in found.items():
        if name != workload.name:
            continue
        if one.skipped:
            rows.append((f"{size}", TITLES[contender], f"skipped: {one.skipped}", *[""] * 6))
            continue
        ours = found.get((name, size, OURS))
        rows.append(
            (
                f"{size}",
                TITLES[contender],
                _seconds(one.seconds),
                _seconds(one.best_seconds),
                _seconds(one.cpu_seconds),
                f"{one.peak_bytes / 2**20:.0f} MiB",
                f"{one.requests:.0f} / {one.depth:.0f}" if one.requests else "",
                *_against(contender, ours, one),
            )
        )
    return rows


def _against(contender: str, ours: Figure | None, one: Figure) -> tuple[str, str]:
    if contender in (OURS, OURS_UNSYNCED):
        return "", ""
    times, memory = _ratio(ours, one, "seconds"), _ratio(ours, one, "peak_bytes")
    return tuple("" if r is None else f"{r:.2f}" for r in (times, memory))  # type: ignore[return-value]


HEADER = (
    "size",
    "contender",
    "median",
    "best",
    "processor",
    "peak memory",
    "requests / depth",
    "ours / it: time",
    "memory",
)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def verdict_rows(
    workloads: Sequence[Workload], decided: Sequence[Verdict]
) -> list[tuple[str, ...]]:
    """Lines of the table of goals."""
    titles = {workload.name: workload for workload in workloads}
    words = {True: "yes", False: "no", None: "not measured"}
    return [
        (
            titles[one.workload].titled(one.size),
            f"{TITLES[one.goal.ours]} / {TITLES[one.against]}",
            "time" if one.goal.measure == "seconds" else "memory",
            "" if one.ratio is None else f"{one.ratio:.2f}",
            f"<= {one.goal.at_most:g}",
            words[one.met],
        )
        for one in decided
    ]


GOAL_HEADER = ("workload", "ratio of", "what", "measured", "goal", "met")


def aligned(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table for the terminal."""
    widths = [max(len(row[n]) for row in (header, *rows)) for n in range(len(header))]
    lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in rows]
    head = "  ".join(t.ljust(w) for t, w in zip(header, widths, strict=True))
    return "\n".join(line.rstrip() for line in (head, "-" * len(head), *lines))


def markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """The same for a page."""
    table = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


_FAR = "far-"
"""Beginning of the names of workloads that are 20 ms away."""
_HALF, _HALVES, _ALL_FAR = 0.5, 10, 16
_INTRODUCTION = """\
Written by `make bench`; how to read it is in `docs/performance.md`. Times are medians of the
rounds, each a process of its own; ratios below 1 are in favour of this package."""


def page(
    workloads: Sequence[Workload],
    measurements: Sequence[Measurement],
    versions: Mapping[str, Mapping[str, str]],
    *,
    folder: Path,
    plot: str | None,
    more: Sequence[str] = (),
) -> str:
    """The whole of `RESULTS.md`."""
    found = figures(measurements)
    parts = [
        "# Benchmark results",
        _INTRODUCTION,
        _machine(versions, found, folder),
        "## Goals",
        markdown(GOAL_HEADER, verdict_rows(workloads, verdicts(workloads, found))),
        *summary(workloads, found),
        "## Behind an official release",
        _behind(workloads, found),
    ]
    if plot:
        parts += ["## Growth", f"![Time by size, one panel for each workload]({plot})"]
    parts.append("## All figures")
    for workload in workloads:
        rows = figure_rows(workload, found)
        if rows:
            title = workload.titled(max(int(row[0]) for row in rows))
            parts += [f"### {workload.name}: {title}", markdown(HEADER, rows)]
    return "\n\n".join([*parts, *more]) + "\n"


def _behind(workloads: Sequence[Workload], found: Mapping[tuple[str, int, str], Figure]) -> str:
    rows = behind(workloads, found)
    if not rows:
        return "At no size that was measured."
    return markdown(BEHIND_HEADER, rows)


def uneven(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Differences other than the contenders, which would affect the measurements."""
    found = []
    for package in ("zarr", "numpy"):
        texts = {TITLES[who]: named[package] for who, named in versions.items() if package in named}
        if len(set(texts.values())) > 1:
            listed = ", ".join(f"{who}: {text}" for who, text in texts.items())
            found.append(f"{package} is not the same everywhere ({listed}): ratios include that")
    return found


def _machine(
    versions: Mapping[str, Mapping[str, str]],
    found: Mapping[tuple[str, int, str], Figure],
    folder: Path,
) -> str:
    counts = [one.rounds for one in found.values() if one.rounds] or [0]
    rounds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    stat = os.statvfs(folder)
    disk = f"{stat.f_blocks * stat.f_frsize / 2**30:.0f} GiB disk"
    system = f"{platform.machine()}, {platform.system()} {platform.release()}"
    lines = [
        f"- Date: {datetime.now(UTC):%Y-%m-%d}, {rounds} rounds",
        f"- Machine: {os.cpu_count()} cores, {_memory()} memory, {disk}, {system}",
        f"- Load when the run ended: {', '.join(f'{load:.1f}' for load in os.getloadavg())}",
    ]
    for contender, packages in versions.items():
        if contender == OURS_UNSYNCED:
            continue
        hidden = "icechunk" if contender in (OURS, "zarr") else ""
        named = ", ".join(f"{name} {text}" for name, text in packages.items() if name != hidden)
        lines.append(f"- {TITLES[contender]}: {named}")
    lines += [f"- Careful: {text}" for text in uneven(versions)]
    return "\n".join(lines)


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / 2**30:.0f} GiB"
