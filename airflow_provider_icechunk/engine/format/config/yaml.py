"""A bounded subset of YAML for stored configurations: only plain values and local tags.

Aliases, merge keys, language tags and multiple documents are refused, so a small file cannot become
a large value and no tag can create an object. Words like `yes` and numbers like `1_000` are text,
as in the official library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from airflow_provider_icechunk.exceptions import FormatError, Kind

MAX_CONFIG_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_VALUES = 20_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader if available: the Python one takes a second per megabyte."""

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")
_FLOAT = re.compile(r"[-+]?[0-9]{1,20}\.[0-9]{0,20}([eE][-+]?[0-9]{1,3})?")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED = re.compile(r'[\x00-\x1f"\\\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]')


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value with a local tag: an alternative with content."""

    name: str
    """The tag without its `!`."""
    value: object


def parse_yaml(data: bytes, *, where: str) -> object:
    """The value in `data`: `None`, booleans, numbers, texts, lists, dicts, `Tagged`."""
    if len(data) > MAX_CONFIG_BYTES:
        raise FormatError(
            f"{where} has {len(data)} bytes; a configuration may have at most {MAX_CONFIG_BYTES}",
            kind=Kind.LIMIT_EXCEEDED,
        )
    try:
        return _YamlReader(data.decode(), where).document()
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" at line {mark.line + 1}"
        problem = getattr(error, "problem", None) or type(error).__name__
        raise FormatError(f"{where} is not valid YAML{line}: {problem}") from None


class _YamlReader:
    """One pass over the events of a document, counting as it goes."""

    def __init__(self, text: str, where: str) -> None:
        self.events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_LOADER))
        self.where = where
        self.values = 0

    def document(self) -> object:
        value: object = None
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.refused(event, "there is more than one document")
                value = self.value(next(self.events), 0)
        return value

    def refused(self, event: yaml.Event, problem: str, kind: Kind | None = None) -> FormatError:
        line = "" if event.start_mark is None else f", line {event.start_mark.line + 1}"
        return FormatError(f"{self.where}{line}: {problem}", kind=kind)

    def value(self, event: yaml.Event, depth: int) -> object:
        self.values += 1
        if depth > _MAX_DEPTH or self.values > _MAX_VALUES:
            raise self.refused(
                event, f"more than {_MAX_DEPTH} levels or {_MAX_VALUES} values", Kind.LIMIT_EXCEEDED
            )
        if isinstance(event, yaml.AliasEvent):
            raise self.refused(event, "aliases are not accepted")
        tag = self.tag(event)
        value: object
        if isinstance(event, yaml.MappingStartEvent):
            value = self.mapping(depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.sequence(depth)
        elif isinstance(event, yaml.ScalarEvent):
            text = self.text(event)
            value = text if event.style or (event.tag == "!") else _plain(text)
        else:
            raise self.refused(event, "a value is missing")
        return value if tag is None else Tagged(tag, value)

    def tag(self, event: yaml.Event) -> str | None:
        tag = getattr(event, "tag", None)
        if tag is None or tag == "!":
            return None
        if not tag.startswith("!") or len(tag) > 100:
            raise self.refused(event, f"the tag {tag[:100]!r} is not accepted")
        return str(tag[1:])

    def text(self, event: yaml.ScalarEvent) -> str:
        try:
            event.value.encode()
        except UnicodeEncodeError:
            raise self.refused(event, "a text is not valid Unicode") from None
        return str(event.value)

    def mapping(self, depth: int) -> dict[str, object]:
        items: dict[str, object] = {}
        for event in self.events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise self.refused(event, "a key must be a plain text")
            key = self.text(event)
            if key in items:
                raise self.refused(event, f"the key {key[:100]!r} occurs twice")
            items[key] = self.value(next(self.events), depth + 1)
        return items

    def sequence(self, depth: int) -> list[object]:
        items: list[object] = []
        for event in self.events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self.value(event, depth + 1))
        return items


def _plain(text: str) -> object:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def format_yaml(value: object) -> bytes:
    """`value` as a YAML document that the official library and `parse_yaml` read alike."""
    return (_after(value, 0).lstrip() + "\n").encode()


def _after(value: object, level: int) -> str:
    """The text of `value` after a key, a dash or a tag."""
    pad = "\n" + "  " * level
    match value:
        case Tagged(name, content):
            return f" !{name}" + ("" if content is None else _after(content, level))
        case dict() if value:
            return "".join(
                f"{pad}{_text(key)}:{_after(item, level + 1)}" for key, item in value.items()
            )
        case list() | tuple() if value:
            return "".join(f"{pad}-{_after(item, level + 1)}" for item in value)
        case dict():
            return " {}"
        case list() | tuple():
            return " []"
        case str():
            return " " + _text(value)
        case bool():
            return " true" if value else " false"
        case None:
            return " null"
        case _:
            return f" {value}"


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and _plain(text) == text and len(text) > 3:
        return text
    if _ESCAPED.search(text) is None:
        return "'" + text.replace("'", "''") + "'"
    return '"' + _ESCAPED.sub(lambda found: f"\\U{ord(found[0]):08x}", text) + '"'
