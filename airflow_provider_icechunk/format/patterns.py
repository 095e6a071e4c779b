r"""Pattern search in time that grows with the text, whatever the pattern.

Patterns come from stored configurations. The engine of the standard library can need exponential
time for a hostile one, so patterns are run here as a set of states that moves over the text once.
The syntax is the regular part of what the official library accepts: literals, `.`, classes, `\d \w
\s \b` and their opposites, groups, alternation, `* + ? {m,n}` (lazy or not), anchors and a leading
`(?i)`. A pattern with anything else, or a huge one, is found nowhere, as an invalid one is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

_MAX_PATTERN = 2_000
_MAX_TEXT = 4_096
_MAX_STATES = 1_000
_MAX_NESTING = 50

Takes = Callable[[str], bool]
_Assertion = Literal["start", "end", "word", "not word"]


@dataclass(frozen=True, slots=True)
class _Char:
    takes: Takes


@dataclass(frozen=True, slots=True)
class _Look:
    at: _Assertion


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _Char | _Look | _Sequence | _Choice | _Repeat


class _NotRegularError(Exception):
    """The pattern is invalid or uses what is not supported."""


def pattern_found(pattern: str, text: str) -> bool:
    """Whether `pattern` is found in `text`; a pattern that is none is found nowhere."""
    machine = _machine(pattern)
    return machine is not None and len(text) <= _MAX_TEXT and machine.search(text)


@lru_cache(maxsize=256)
def _machine(pattern: str) -> _Machine | None:
    if len(pattern) > _MAX_PATTERN:
        return None
    try:
        return _Machine.of(_Parser(pattern).whole())
    except _NotRegularError:
        return None


_CLASSES: dict[str, Takes] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_ANCHORS: dict[str, _Assertion] = {"A": "start", "z": "end", "b": "word", "B": "not word"}
_COUNT = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}")


def _none_of(takes: Takes) -> Takes:
    return lambda char: not takes(char)


def _one_of(options: tuple[Takes, ...]) -> Takes:
    return lambda char: any(takes(char) for takes in options)


def _between(low: str, high: str) -> Takes:
    return lambda char: low <= char <= high


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.any_case = self.accept("(?i)")

    def fold(self, takes: Takes) -> Takes:
        if not self.any_case:
            return takes
        return lambda char: takes(char) or takes(char.swapcase())

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise _NotRegularError
        self.at += 1
        return char

    def accept(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        if found:
            self.at += len(text)
        return found

    def whole(self) -> _Node:
        node = self.choice()
        if self.peek():
            raise _NotRegularError
        return node

    def choice(self) -> _Node:
        self.depth += 1
        if self.depth > _MAX_NESTING:
            raise _NotRegularError
        parts = [self.sequence()]
        while self.accept("|"):
            parts.append(self.sequence())
        self.depth -= 1
        return _Choice(tuple(parts))

    def sequence(self) -> _Node:
        parts = []
        while self.peek() and self.peek() not in "|)":
            parts.append(self.repeated(self.atom()))
        return _Sequence(tuple(parts))

    def repeated(self, node: _Node) -> _Node:
        for _ in range(_MAX_NESTING):
            if self.accept("*"):
                node = _Repeat(node, 0, None)
            elif self.accept("+"):
                node = _Repeat(node, 1, None)
            elif self.accept("?"):
                node = _Repeat(node, 0, 1)
            elif self.peek() == "{":
                node = self.counted(node)
            else:
                return node
            # Lazy or not makes no difference to whether a pattern is found.
            self.accept("?")
        raise _NotRegularError

    def counted(self, node: _Node) -> _Node:
        count = _COUNT.match(self.pattern, self.at)
        if count is None:
            raise _NotRegularError
        self.at = count.end()
        least = int(count[1])
        most = least if count[2] is None else int(count[3]) if count[3] else None
        if most is not None and most < least:
            raise _NotRegularError
        return _Repeat(node, least, most)

    def atom(self) -> _Node:
        char = self.take()
        match char:
            case "^":
                return _Look("start")
            case "$":
                return _Look("end")
            case ".":
                return _Char(lambda found: found != "\n")
            case "(":
                return self.grouped()
            case "[":
                return _Char(self.char_class())
            case "\\":
                return self.escaped()
            case "*" | "+" | "?" | "{":
                raise _NotRegularError
        return _Char(self.fold(char.__eq__))

    def grouped(self) -> _Node:
        if self.accept("?") and not self.accept(":") and not self.named():
            raise _NotRegularError
        node = self.choice()
        if not self.accept(")"):
            raise _NotRegularError
        return node

    def named(self) -> bool:
        name = re.compile(r"P?<[A-Za-z_][A-Za-z0-9_]*>").match(self.pattern, self.at)
        if name is not None:
            self.at = name.end()
        return name is not None

    def escaped(self) -> _Node:
        if self.peek() in _ANCHORS and self.peek():
            return _Look(_ANCHORS[self.take()])
        return _Char(self.escape())

    def escape(self) -> Takes:
        char = self.take()
        if char.lower() in _CLASSES:
            takes = _CLASSES[char.lower()]
            return takes if char.islower() else _none_of(takes)
        return self.fold(self.literal(char).__eq__)

    def literal(self, char: str) -> str:
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum() or not char.isascii():
            raise _NotRegularError
        return char

    def char_class(self) -> Takes:
        negated = self.accept("^")
        options: list[Takes] = []
        while not self.accept("]") or not options:
            options.append(self.class_item(first=not options))
        takes = _one_of(tuple(options))
        return _none_of(takes) if negated else takes

    def class_item(self, *, first: bool) -> Takes:
        if first and self.pattern[self.at - 1] == "]" and self.pattern[self.at - 2] in "[^":
            low = "]"
        else:
            low = self.take()
            if low == "[" or (low in "&-~" and self.peek() == low):
                raise _NotRegularError
            if low == "\\":
                if self.peek().lower() in _CLASSES:
                    return self.escape()
                low = self.literal(self.take())
        following = self.pattern[self.at : self.at + 2]
        if not following.startswith("-") or following in ("-", "-]"):
            return self.fold(low.__eq__)
        self.at += 1
        high = self.take()
        if high == "[":
            raise _NotRegularError
        if high == "\\":
            high = self.literal(self.take())
        if high < low:
            raise _NotRegularError
        return self.fold(_between(low, high))


@dataclass(slots=True)
class _State:
    takes: Takes | None = None
    look: _Assertion | None = None
    following: tuple[int, ...] = ()


class _Machine:
    """States with free moves; state 0 accepts."""

    def __init__(self) -> None:
        self.states = [_State()]
        self.start = 0

    @classmethod
    def of(cls, node: _Node) -> _Machine:
        machine = cls()
        machine.start = machine.build(node, 0)
        return machine

    def add(self, state: _State) -> int:
        if len(self.states) >= _MAX_STATES:
            raise _NotRegularError
        self.states.append(state)
        return len(self.states) - 1

    def build(self, node: _Node, then: int) -> int:
        match node:
            case _Char(takes):
                return self.add(_State(takes=takes, following=(then,)))
            case _Look(at):
                return self.add(_State(look=at, following=(then,)))
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self.build(part, then)
                return then
            case _Choice(parts):
                return self.add(_State(following=tuple(self.build(part, then) for part in parts)))
            case _Repeat():
                return self.build_repeat(node, then)

    def build_repeat(self, node: _Repeat, then: int) -> int:
        if node.most is None:
            loop = self.add(_State())
            self.states[loop].following = (self.build(node.part, loop), then)
            then = loop
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self.add(_State(following=(self.build(node.part, then), end)))
        for _ in range(node.least):
            then = self.build(node.part, then)
        return then

    def search(self, text: str) -> bool:
        """Whether the accepting state is reached from any position of `text`."""
        active: set[int] = set()
        for at, (before, after) in enumerate(pairwise(["", *text, ""])):
            active = self.reach(active | {self.start}, before, after, at, len(text))
            if 0 in active:
                return True
            active = {
                target
                for number in active
                if (takes := self.states[number].takes) is not None and after and takes(after)
                for target in self.states[number].following
            }
        return False

    def reach(self, active: set[int], before: str, after: str, at: int, end: int) -> set[int]:
        """`active` and all states that are a free move away at this position."""
        word = _CLASSES["w"]
        at_edge = bool(before and word(before)) != bool(after and word(after))
        holds = {"start": at == 0, "end": at == end, "word": at_edge, "not word": not at_edge}
        seen = set(active)
        waiting = list(active)
        while waiting:
            state = self.states[waiting.pop()]
            if state.takes is None and (state.look is None or holds[state.look]):
                new = [target for target in state.following if target not in seen]
                seen.update(new)
                waiting.extend(new)
        return seen
