"""How values are shown: as text, as code that recreates them, and in notebooks.

A value provides its name and its facts (`Shown`), and this module renders them. Names are those of
the official package, which `airflow_provider_icechunk.api` replaces in a program. Everything in
HTML is escaped, because others write messages, paths and metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from html import escape
from typing import Any

_ROOMS = {
    "Conflict": "conflicts",
    "ForkSession": "session",
    "ChunkStorageStats": "stats",
    "Diff": "snapshots",
    "GCSummary": "ops",
    "ManifestFileInfo": "snapshots",
    "RepoStatus": "repository",
    "S3Options": "storage",
    "RearrangeSession": "session",
    "Session": "session",
    "SnapshotInfo": "snapshots",
    "StorageConcurrencySettings": "storage",
    "StorageRetriesSettings": "storage",
    "StorageSettings": "storage",
    "StorageTimeoutSettings": "storage",
    "Update": "ops",
    "VirtualChunkContainer": "virtual",
}
"""Where the official package keeps a class; the others here are parts of the configuration."""
_INDENT = "    "
_MOST_ITEMS = 50
_MOST_PATHS = 500


@dataclass(frozen=True, slots=True)
class Default:
    """A value that was not set, and its effective default."""

    value: object


class Shown:
    """Shows its name and its facts."""

    __slots__ = ()

    def shown_name(self) -> str:
        """The name, as in the official package."""
        return official_name(type(self))

    def shown_facts(self) -> Mapping[str, object]:
        """What is worth knowing, in order."""
        return {item.name: getattr(self, item.name) for item in _visible(self)}

    def __repr__(self) -> str:
        return as_text(self)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


class Made(Shown):
    """Shown as code by `repr`, which evaluates to an equal value with the API as `icechunk`."""

    __slots__ = ()

    def shown_arguments(self) -> Mapping[str, object]:
        """The arguments that make it."""
        return {item.name: getattr(self, item.name) for item in _visible(self)}

    def __repr__(self) -> str:
        return as_code(self)


def official_name(cls: type) -> str:
    """Where the official package has this class."""
    return f"icechunk.{_ROOMS.get(cls.__name__, 'config')}.{cls.__qualname__}"


def as_text(value: Shown) -> str:
    """The name in angle brackets, then a line for each fact."""
    return "\n".join(_lines(value.shown_name(), value.shown_facts())) + "\n"


def as_code(value: object) -> str:
    """A call that makes the value."""
    match value:
        case Made():
            return _call(official_name(type(value)), value.shown_arguments())
        case Enum():
            return f"icechunk.{type(value).__name__}.{value.name}"
        case str():
            return _quoted(value)
        case Mapping():
            items = (f"{as_code(key)}: {as_code(item)}" for key, item in value.items())
            return _block("{", items, "}")
        case tuple():
            return f"({', '.join(map(as_code, value))}{',' if len(value) == 1 else ''})"
        case list():
            return f"[{', '.join(map(as_code, value))}]"
        case _:
            return repr(value)


def as_html(value: Shown) -> str:
    """A box for notebooks, in the colours of the page, light or dark."""
    return f"<style>{_STYLE}</style>\n{_box(value.shown_name(), value.shown_facts())}"


def as_tree(name: str, facts: Mapping[str, object]) -> str:
    """A box for notebooks with a fact for each of some paths, nested below its groups."""
    tree: dict[str, Any] = {}
    for path in list(facts)[:_MOST_PATHS]:
        place = tree
        for part in path.strip("/").split("/"):
            place = place.setdefault(part, {})
    more = len(facts) - _MOST_PATHS
    rest = [f'<div class="icechunk-field">and {more:,} more paths</div>'] if more > 0 else []
    rows = _branches(tree, "", facts) or ['<div class="icechunk-field">nothing changed</div>']
    return f"<style>{_STYLE}</style>\n{_framed(name, [*rows, *rest])}"


def _branches(tree: Mapping[str, Any], above: str, facts: Mapping[str, object]) -> list[str]:
    rows = []
    for part, inside in sorted(tree.items()):
        path = f"{above}/{part}"
        fact = facts.get(path)
        said = "" if fact is None else f": {escape(plain(fact))}"
        title = f'<span class="icechunk-field-name">{escape(part or "/")}</span>{said}'
        if inside:
            below = "\n".join(_branches(inside, path, facts))
            rows.append(f"<details open><summary>{title}</summary>\n{below}\n</details>")
        else:
            rows.append(f'<div class="icechunk-field">{title}</div>')
    return rows


def _visible(value: Any) -> list[Any]:
    return [item for item in fields(value) if item.repr]


def _lines(name: str, facts: Mapping[str, object]) -> list[str]:
    lines = [f"<{name}>"]
    for key, fact in facts.items():
        inner = _inside(fact)
        if inner is None:
            first, *rest = plain(fact).split("\n")
            lines += [f"{key}: {first}", *(f"{_INDENT}{line}" for line in rest)]
        else:
            lines += [f"{key}:", *(f"{_INDENT}{line}" for line in inner)]
    return lines


def _inside(fact: object) -> list[str] | None:
    """The lines of a fact that itself has facts; `None` for a plain one."""
    match fact:
        case Shown():
            return _lines(fact.shown_name(), fact.shown_facts())
        case Mapping() if fact and all(isinstance(one, Shown) for one in fact.values()):
            lines: list[str] = []
            for key, one in fact.items():
                lines += [f"{key}:", *(f"{_INDENT}{line}" for line in _inside(one) or ())]
            return lines
        case _:
            return None


def plain(fact: object) -> str:
    """A fact in one line; long lists are cut."""
    match fact:
        case Default(value):
            return f"{plain(value)} (default)"
        case Enum():
            return fact.name
        case str() | None | bool() | int() | float():
            return str(fact)
        case Sequence() if len(fact) > _MOST_ITEMS and not isinstance(fact, bytes):
            return f"{list(fact[:_MOST_ITEMS])!r} and {len(fact) - _MOST_ITEMS} more"
        case _:
            return repr(fact)


def _call(name: str, arguments: Mapping[str, object]) -> str:
    return _block(f"{name}(", (f"{key}={as_code(one)}" for key, one in arguments.items()), ")")


def _block(start: str, items: Iterable[str], end: str) -> str:
    lines = [line for item in items for line in f"{item},".split("\n")]
    if not lines:
        return start + end
    return "\n".join([start, *(f"{_INDENT}{line}" for line in lines), end])


def _quoted(text: str) -> str:
    is_plain = text.isprintable() and not {'"', "\\"} & set(text)
    return f'"{text}"' if is_plain else repr(text)


def _box(name: str, facts: Mapping[str, object]) -> str:
    return _framed(name, [_row(key, fact) for key, fact in facts.items()])


def _framed(name: str, rows: Sequence[str]) -> str:
    lines = "\n".join(rows)
    return (
        f'<div class="icechunk-repr">\n<div class="icechunk-header">&lt;{escape(name)}&gt;</div>\n'
        f"{lines}\n</div>"
    )


def _row(key: str, fact: object) -> str:
    title = escape(key)
    match fact:
        case Shown():
            inner = _box(fact.shown_name(), fact.shown_facts())
        case Mapping() if fact and all(isinstance(one, Shown) for one in fact.values()):
            inner = "\n".join(_row(str(name), one) for name, one in fact.items())
        case _:
            return (
                f'<div class="icechunk-field"><span class="icechunk-field-name">{title}:</span> '
                f'<span class="icechunk-field-value">{escape(plain(fact))}</span></div>'
            )
    return f"<details><summary>{title}</summary>\n{inner}\n</details>"


_STYLE = """
.icechunk-repr { max-width: 50em; line-height: 1.5; color: inherit; }
.icechunk-repr .icechunk-header {
  font-weight: 600; margin-bottom: 4px; padding-bottom: 4px;
  border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent);
}
.icechunk-repr .icechunk-field-name, .icechunk-repr summary { opacity: 0.7; }
.icechunk-repr .icechunk-field-value { white-space: pre-wrap; overflow-wrap: anywhere; }
.icechunk-repr summary { cursor: pointer; }
.icechunk-repr details > .icechunk-field, .icechunk-repr details > details { margin-left: 16px; }
.icechunk-repr details > .icechunk-repr {
  margin: 4px 0 4px 12px; padding: 6px 10px; border-radius: 4px;
  background: color-mix(in srgb, currentColor 6%, transparent);
}
"""
"""Every colour is derived from the text's, so that it fits whatever theme the page has."""
