"""The protocol of writers, expiry, collection and leases, small enough to try every order of steps.

Objects are swapped or put one at a time, time passes in ticks between any two steps, and every
reachable state is checked, breadth first. What is modelled is the order of reads and writes that
`engine/leases.py`, `engine/commit/commit.py` and `engine/maintenance/` keep, not their code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

QUIET = 1
"""Ticks for which work needs no lease; collections never touch anything as young."""
LIFE = 2
"""Ticks for which a lease is live; a writer trusts it for half of them."""
TRIES = 2


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; a model in which one is off has to fail."""

    writer_leases: bool = True
    writer_asks_before: bool = True
    writer_asks_after: bool = True
    writer_takes_back: bool = True
    branch_is_swapped: bool = True
    collector_announces: bool = True
    collector_reads_leases: bool = True
    collector_looks_again: bool = True


class Snap(NamedTuple):
    name: str
    parent: str | None
    chunks: frozenset[str]
    stored: int


class Writer(NamedTuple):
    at: str = "begin"
    base: str = ""
    tries: int = 0
    wrote: int = -1
    leased: int = -1


class Collector(NamedTuple):
    at: str = "begin"
    made: int = 0
    before: int = 0
    snaps: frozenset[str] = frozenset()
    chunks: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()
    spare: frozenset[Snap] = frozenset()


class State(NamedTuple):
    time: int
    head: str
    snaps: frozenset[Snap]
    chunks: frozenset[tuple[str, int]]
    cutoff: int
    leases: frozenset[tuple[str, int, int]]
    """Owner, since when, and when it was put."""
    writers: tuple[Writer, Writer]
    expiry: tuple[str, str]
    collector: Collector


START = State(
    time=2,
    head="first",
    snaps=frozenset(
        {
            Snap("first", None, frozenset({"of first"}), 0),
            Snap("garbage", "first", frozenset({"of garbage"}), 0),
        }
    ),
    chunks=frozenset({("of first", 0), ("of garbage", 0)}),
    cutoff=0,
    leases=frozenset(),
    writers=(Writer(), Writer()),
    expiry=("begin", ""),
    collector=Collector(),
)


def find(state: State, name: str) -> Snap | None:
    return next((snap for snap in state.snaps if snap.name == name), None)


def line(state: State, spare: frozenset[Snap] = frozenset()) -> list[Snap] | None:
    """The history of the branch; `None` if a snapshot of it is missing."""
    found: list[Snap] = []
    name: str | None = state.head
    while name is not None:
        snap = find(state, name) or next((one for one in spare if one.name == name), None)
        if snap is None:
            return None
        found.append(snap)
        name = snap.parent
    return found


def broken(state: State) -> str | None:
    """Which promise this state breaks."""
    places = {writer.at for writer in state.writers}
    if places & {"after", "ask after", "look back"}:
        # The writer that moved the branch last has not looked yet, and may still move it back.
        return None
    history = line(state)
    if history is None:
        # Between a delete and its second look a snapshot may be missing until it is put back.
        is_under_way = state.collector.at in ("look again", "put back")
        if is_under_way and line(state, state.collector.spare) is not None:
            return None
        return None if "warned" in places else "a snapshot of the branch is missing"
    there = {name for name, _ in state.chunks}
    for number, writer in enumerate(state.writers):
        if writer.at == "done" and f"of {number}" not in history[0].chunks:
            return f"the commit of writer {number} is lost"
        if writer.at == "done" and f"of {number}" not in there:
            return f"writer {number} was acknowledged, and its chunk is gone"
    if "warned" not in places and not history[0].chunks <= there:
        return "the branch needs a chunk that is gone"
    return None


def steps(state: State, rules: Rules, last: int) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    if state.time < last:
        yield "a tick", state._replace(time=state.time + 1)
    for number in (0, 1):
        for what, after in _write(state, rules, number):
            yield f"writer {number}: {what}", after
    for what, after in _expire(state):
        yield f"expiry: {what}", after
    for what, after in _collect(state, rules):
        yield f"collector: {what}", after


def _write(state: State, rules: Rules, number: int) -> Iterator[tuple[str, State]]:
    writer, now = state.writers[number], state.time
    chunk, owner = f"of {number}", str(number)

    def becomes(**changes: object) -> tuple[Writer, Writer]:
        both = list(state.writers)
        both[number] = writer._replace(**changes)  # type: ignore[arg-type]
        return both[0], both[1]

    match writer.at:
        case "begin":
            yield (
                "stores a chunk",
                state._replace(
                    chunks=state.chunks | {(chunk, now)},
                    writers=becomes(at="plan", wrote=now, base=state.head),
                ),
            )
        case "plan":
            base = find(state, writer.base)
            if base is None:
                yield "finds its base gone", state._replace(writers=becomes(at="refused"))
                return
            snap = Snap(f"{number}.{writer.tries}", base.name, base.chunks | {chunk}, now)
            yield (
                "stores a snapshot",
                state._replace(
                    snaps=state.snaps | {snap}, writers=becomes(at="confirm", leased=-1)
                ),
            )
        case "confirm":
            if now - writer.wrote < QUIET or not rules.writer_leases:
                yield "is young", state._replace(writers=becomes(at="swap"))
            else:
                kept = {lease for lease in state.leases if lease[0] != owner}
                yield (
                    "stores its lease",
                    state._replace(
                        leases=frozenset(kept | {(owner, writer.wrote, now)}),
                        writers=becomes(at="ask", leased=now),
                    ),
                )
        case "ask":
            yield _ask(state, rules, number, becomes)
        case "swap":
            name = f"{number}.{writer.tries}"
            if state.head == writer.base or not rules.branch_is_swapped:
                yield "moves", state._replace(head=name, writers=becomes(at="after"))
            elif writer.tries + 1 < TRIES:
                yield (
                    "lost, and begins again",
                    state._replace(
                        writers=becomes(at="plan", base=state.head, tries=writer.tries + 1)
                    ),
                )
            else:
                yield "gives up", state._replace(writers=becomes(at="refused"))
        case "after" | "ask after" | "look back":
            yield _acknowledge(state, rules, number, becomes)
        case _:
            pass


def _ask(
    state: State, rules: Rules, number: int, becomes: Callable[..., tuple[Writer, Writer]]
) -> tuple[str, State]:
    writer = state.writers[number]
    if rules.writer_asks_before and writer.wrote < state.cutoff:
        return "is refused", state._replace(writers=becomes(at="refused"))
    if 2 * (state.time - writer.leased) < LIFE:
        return "asked for the cut-off", state._replace(writers=becomes(at="swap"))
    return "was too slow", state._replace(writers=becomes(at="confirm"))


def _acknowledge(
    state: State, rules: Rules, number: int, becomes: Callable[..., tuple[Writer, Writer]]
) -> tuple[str, State]:
    writer, now = state.writers[number], state.time
    if writer.at == "ask after":
        if writer.wrote >= state.cutoff:
            return "asks again", state._replace(writers=becomes(at="done"))
        if not rules.writer_takes_back:
            return "leaves it", state._replace(writers=becomes(at="left"))
        if state.head != f"{number}.{writer.tries}":
            return "warns", state._replace(writers=becomes(at="warned"))
        return "takes back", state._replace(head=writer.base, writers=becomes(at="look back"))
    if writer.at == "look back":
        ours = f"{number}.{writer.tries}"
        if find(state, writer.base) is not None:
            return "is refused", state._replace(writers=becomes(at="refused"))
        head = ours if state.head == writer.base else state.head
        return "warns", state._replace(head=head, writers=becomes(at="warned"))
    is_safe = now - writer.wrote < QUIET or (
        writer.leased >= 0 and 2 * (now - writer.leased) < LIFE
    )
    if not is_safe and rules.writer_asks_after:
        return "has been slow", state._replace(writers=becomes(at="ask after"))
    leases = frozenset(one for one in state.leases if one[0] != str(number))
    return "is acknowledged", state._replace(writers=becomes(at="done"), leases=leases)


def _expire(state: State) -> Iterator[tuple[str, State]]:
    at, name = state.expiry
    if at == "begin":
        history = line(state)
        if history is not None and len(history) > 2:
            yield "plans", state._replace(expiry=("edit", state.head))
    elif at == "edit":
        snap = find(state, name)
        if snap is not None:
            edited = Snap(name, "first", snap.chunks, state.time)
            yield (
                "edits",
                state._replace(snaps=(state.snaps - {snap}) | {edited}, expiry=("done", name)),
            )


def _collect(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    run = state.collector
    match run.at:
        case "begin":
            before = _limit(state, state.time, state.time - QUIET, rules)
            yield (
                "lists",
                state._replace(
                    collector=run._replace(
                        at="look",
                        made=state.time,
                        before=before,
                        snaps=frozenset(one.name for one in state.snaps if one.stored < before),
                        chunks=frozenset(name for name, at in state.chunks if at < before),
                    )
                ),
            )
        case "look":
            yield "looks", _looked(state, run, "announce")
        case "announce":
            cutoff = max(state.cutoff, run.before) if rules.collector_announces else state.cutoff
            yield (
                "stores its cut-off",
                state._replace(cutoff=cutoff, collector=run._replace(at="leases")),
            )
        case "leases":
            before = _limit(state, run.made, run.before, rules)
            stored = dict(state.chunks)
            spared = run._replace(
                at="roots",
                before=before,
                snaps=frozenset(
                    one.name for one in state.snaps if one.name in run.snaps and one.stored < before
                ),
                chunks=frozenset(one for one in run.chunks if stored.get(one, before) < before),
            )
            yield "reads leases", state._replace(collector=spared)
        case "roots":
            if rules.collector_looks_again:
                yield "looks", _looked(state, run, "delete")
            else:
                yield "goes on", state._replace(collector=run._replace(at="delete"))
        case "delete":
            doomed = frozenset(
                one for one in state.snaps if one.name in run.snaps and one.name not in run.alive
            )
            yield (
                "deletes snapshots",
                state._replace(
                    snaps=state.snaps - doomed,
                    collector=run._replace(at="look again", spare=doomed),
                ),
            )
        case "look again":
            if rules.collector_looks_again:
                yield "looks", _looked(state, run, "put back")
            else:
                yield "goes on", state._replace(collector=run._replace(at="sweep"))
        case "put back":
            back = frozenset(one for one in run.spare if one.name in run.alive)
            yield (
                "puts back",
                state._replace(snaps=state.snaps | back, collector=run._replace(at="sweep")),
            )
        case "sweep":
            left = frozenset(
                (name, at)
                for name, at in state.chunks
                if name not in run.chunks or name in run.alive
            )
            yield (
                "deletes chunks",
                state._replace(chunks=left, collector=run._replace(at="done", spare=frozenset())),
            )
        case _:
            pass


def _limit(state: State, now: int, before: int, rules: Rules) -> int:
    if not rules.collector_reads_leases:
        return before
    return min([before, *(since for _, since, put in state.leases if put + LIFE > now)])


def _looked(state: State, run: Collector, following: str) -> State:
    """What the branch and young snapshots need, in addition to what is known to be needed."""
    history = line(state, run.spare) or []
    kept = [*history, *(one for one in state.snaps if one.stored >= run.before)]
    names = {one.name for one in kept} | {one.parent for one in kept if one.parent is not None}
    chunks = {chunk for one in kept for chunk in one.chunks}
    alive = run.alive | names | chunks
    return state._replace(collector=run._replace(at=following, alive=frozenset(alive)))


@dataclass(frozen=True)
class Explored:
    states: int
    problem: str | None = None
    path: tuple[str, ...] = ()


ALONE = START._replace(writers=(Writer(), Writer(at="refused")))
"""One writer beside a collection: enough to show what most rules are for."""


def explore(
    rules: Rules | None = None, *, start: State = START, last: int = 4, most: int = 1_000_000
) -> Explored:
    """Look at every reachable state; if one is broken, returns the shortest way to it."""
    chosen = rules or Rules()
    came: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        problem = broken(state)
        if problem is not None:
            return Explored(len(came), problem, tuple(_path(state, came)))
        for what, after in steps(state, chosen, last):
            if after not in came:
                came[after] = (state, what)
                waiting.append(after)
                assert len(came) <= most, "too many states"
    return Explored(len(came))


def _path(state: State, came: dict[State, tuple[State, str] | None]) -> list[str]:
    path: list[str] = []
    step = came[state]
    while step is not None:
        path.append(step[1])
        step = came[step[0]]
    return path[::-1]
