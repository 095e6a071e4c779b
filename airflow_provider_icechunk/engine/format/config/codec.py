"""`RepositoryConfig` to and from `config.yaml`.

Every key may be missing or null. Unknown keys are kept and written back, so saving a configuration
with this version loses nothing that a newer one stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .conditions import (
    AllOf,
    Always,
    AnyDimCondition,
    AnyOf,
    Bound,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    NameMatches,
    Never,
    NumRefs,
    PathMatches,
    Rule,
)
from .model import (
    CompressionAlgorithm,
    CompressionConfig,
    ManifestPreloadConfig,
    RepositoryConfig,
    VirtualChunkContainer,
)
from .settings import U32, Settings
from .stores import AnyObjectStoreConfig, ObjectStoreConfig, S3Options
from .yaml import Tagged, format_yaml, parse_yaml

_Group = TypeVar("_Group", bound=Settings)

_S3_STORES: dict[str, Callable[[S3Options], AnyObjectStoreConfig]] = {
    "s3": ObjectStoreConfig.S3,
    "s3compatible": ObjectStoreConfig.S3Compatible,
    "tigris": ObjectStoreConfig.Tigris,
}
_MAP_STORES: dict[str, Callable[[dict[str, str]], AnyObjectStoreConfig]] = {
    "gcs": ObjectStoreConfig.Gcs,
    "azure": ObjectStoreConfig.Azure,
    "http": ObjectStoreConfig.Http,
}


def decode_config(data: bytes, *, where: str) -> RepositoryConfig:
    """The configuration stored as `data`; `where` names the file in errors."""
    return config_from_tree(parse_yaml(data, where=where), where=where)


def encode_config(config: RepositoryConfig) -> bytes:
    """`config` as the bytes of `config.yaml`."""
    return format_yaml(config_to_tree(config))


def config_from_tree(tree: object, *, where: str) -> RepositoryConfig:
    """The configuration from plain values.

    An alternative with content is a `Tagged` value or a mapping with one key, as in encodings that
    have no tags.
    """
    try:
        return _group(RepositoryConfig, {} if tree is None else tree, "the configuration")
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error.message}") from None


def config_to_tree(config: RepositoryConfig, *, tags: bool = True) -> object:
    """`config` in plain values.

    Alternatives with content are `Tagged`; without `tags`, mappings with one key.
    """
    tree = _plain_group(config)
    return tree if tags else _without_tags(tree)


def _without_tags(tree: object) -> object:
    match tree:
        case Tagged(name, content):
            return {name: _without_tags(content)}
        case dict():
            return {key: _without_tags(item) for key, item in tree.items()}
        case list():
            return [_without_tags(item) for item in tree]
    return tree


def _wrong(at: str, expected: str, value: object) -> InvalidInputError:
    return InvalidInputError(f"{at} must be {expected}, not {type(value).__name__}")


def _mapping(value: object, at: str) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _wrong(at, "a mapping", value)
    return value


def _sequence(value: object, at: str) -> list[object]:
    if not isinstance(value, list):
        raise _wrong(at, "a list", value)
    return value


def _text(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise _wrong(at, "a text", value)
    return value


def _number(value: object, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= U32:
        raise _wrong(at, f"a whole number from 0 to {U32}", value)
    return value


def _variant(value: object, at: str) -> tuple[str, object]:
    """Name and content of an alternative, in either form."""
    match value:
        case Tagged(name, content):
            return name, content
        case str():
            return value, None
        case bool():
            return str(value).lower(), None
        case dict() if len(value) == 1:
            ((name, content),) = value.items()
            return _text(name, at), content
    raise _wrong(at, "one of several named alternatives", value)


def _group(cls: type[_Group], tree: object, at: str) -> _Group:
    items = _mapping(tree, at)
    known = {item.name: item for item in fields(cls) if item.name != "extra"}
    given: dict[str, Any] = {}
    for name, item in known.items():
        value = items.get(name)
        if value is not None:
            given[name] = _value(cls, item.metadata.get("kind"), name, value)
    extra = {name: value for name, value in items.items() if name not in known}
    return cls(**given, extra=extra)


def _value(cls: type[Settings], kind: type | None, name: str, value: object) -> object:
    if (cls, name) in _SPECIAL:
        return _SPECIAL[cls, name](value)
    if kind is not None and issubclass(kind, Settings):
        return _group(kind, value, name)
    return value


def _algorithm(value: object) -> CompressionAlgorithm:
    name, _ = _variant(value, "compression.algorithm")
    if name.lower() != "zstd":
        raise InvalidInputError(f"the compression algorithm {name[:100]!r} is unknown")
    return CompressionAlgorithm.Zstd


def _containers(value: object) -> dict[str, VirtualChunkContainer]:
    at = "virtual_chunk_containers"
    return {key: _container(item, at) for key, item in _mapping(value, at).items()}


def _container(value: object, at: str) -> VirtualChunkContainer:
    items = dict(_mapping(value, at))
    name = items.pop("name", None)
    return VirtualChunkContainer(
        _text(items.pop("url_prefix", None), f"{at}: url_prefix"),
        _store(items.pop("store", None), f"{at}: store"),
        name=None if name is None else _text(name, f"{at}: name"),
        extra=items,
    )


def _store(value: object, at: str) -> AnyObjectStoreConfig:
    tag, content = _variant(value, at)
    # Before the first release, names were written in camel case.
    name = tag.replace("_", "").lower()
    if name in _S3_STORES:
        return _S3_STORES[name](_group(S3Options, content or {}, at))
    if name in _MAP_STORES:
        options = _mapping(content or {}, at)
        return _MAP_STORES[name]({key: _text(item, at) for key, item in options.items()})
    if name == "localfilesystem":
        return ObjectStoreConfig.LocalFileSystem(_text(content, at))
    if name == "inmemory":
        return ObjectStoreConfig.InMemory()
    return ObjectStoreConfig.Unknown(tag, content)


def _rule(value: object, at: str) -> Rule:
    name, content = _variant(value, at)
    match name:
        case "or" | "and":
            parts = tuple(_rule(part, at) for part in _sequence(content, at))
            return AnyOf(parts) if name == "or" else AllOf(parts)
        case "path_matches" | "name_matches":
            regex = _text(_mapping(content, at).get("regex"), f"{at}: regex")
            return PathMatches(regex) if name == "path_matches" else NameMatches(regex)
        case "num_refs":
            bounds = _mapping(content, at)
            return NumRefs(_bound(bounds.get("from"), at), _bound(bounds.get("to"), at))
        case "any_array" | "true":
            return Always()
        case "false":
            return Never()
    raise InvalidInputError(f"{at}: the condition {name[:100]!r} is unknown")


def _bound(value: object, at: str) -> Bound | None:
    name, content = _variant(value, at)
    match name:
        case "Unbounded":
            return None
        case "Included" | "Excluded":
            return Bound(_number(content, at), included=name == "Included")
    raise InvalidInputError(f"{at}: the bound {name[:100]!r} is unknown")


def _dimension(value: object, at: str) -> AnyDimCondition:
    name, content = _variant(value, at)
    match name:
        case "Axis":
            return ManifestSplitDimCondition.Axis(_number(content, at))
        case "DimensionName":
            return ManifestSplitDimCondition.DimensionName(_text(content, at))
        case "Any":
            return ManifestSplitDimCondition.Any()
    raise InvalidInputError(f"{at}: the dimension condition {name[:100]!r} is unknown")


def _split_sizes(value: object) -> Iterable[tuple[ManifestSplitCondition, list[Any]]]:
    at = "split_sizes"
    for pair in _sequence(value, at):
        rule = _sequence(pair, at)
        if len(rule) != 2:
            raise InvalidInputError(f"{at}: a rule is a condition and a list of dimensions")
        sizes = []
        for item in _sequence(rule[1], at):
            entry = _mapping(item, at)
            sizes.append((_dimension(entry.get("condition"), at), entry.get("num_chunks")))
        yield ManifestSplitCondition(_rule(rule[0], at)), sizes


def _preload_if(value: object) -> ManifestPreloadCondition:
    return ManifestPreloadCondition(_rule(value, "preload_if"))


def _plain_group(settings: Settings) -> dict[str, object]:
    known = {
        item.name: _plain(getattr(settings, item.name))
        for item in fields(settings)
        if item.name != "extra"
        and not (item.metadata.get("later") and getattr(settings, item.name) is None)
    }
    return {**known, **settings.extra}


def _plain(value: object) -> object:
    match value:
        case ManifestSplittingConfig():
            return {"split_sizes": _plain_sizes(value), **value.extra}
        case Settings():
            return _plain_group(value)
        case CompressionAlgorithm():
            return "zstd"
        case ManifestPreloadCondition(rule):
            return _plain_rule(rule, always="true")
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case None | bool() | int() | str():
            return value
    return _plain_store(value)


def _plain_store(store: object) -> object:
    match store:
        case ObjectStoreConfig.S3(options):
            return Tagged("s3", _plain_group(options))
        case ObjectStoreConfig.S3Compatible(options):
            return Tagged("s3_compatible", _plain_group(options))
        case ObjectStoreConfig.Tigris(options):
            return Tagged("tigris", _plain_group(options))
        case ObjectStoreConfig.Gcs(options):
            return Tagged("gcs", dict(options or {}))
        case ObjectStoreConfig.Azure(options):
            return Tagged("azure", dict(options or {}))
        case ObjectStoreConfig.Http(options):
            return Tagged("http", dict(options or {}))
        case ObjectStoreConfig.LocalFileSystem(path):
            return Tagged("local_file_system", path)
        case ObjectStoreConfig.InMemory():
            return "in_memory"
        case ObjectStoreConfig.Unknown(tag, content):
            return tag if content is None else Tagged(tag, content)
    raise InvalidInputError(f"{type(store).__name__} cannot be part of a configuration")


def _plain_rule(rule: Rule, always: str) -> object:
    match rule:
        case AnyOf(parts):
            return Tagged("or", [_plain_rule(part, always) for part in parts])
        case AllOf(parts):
            return Tagged("and", [_plain_rule(part, always) for part in parts])
        case PathMatches(regex):
            return Tagged("path_matches", {"regex": regex})
        case NameMatches(regex):
            return Tagged("name_matches", {"regex": regex})
        case NumRefs(lower, upper):
            return Tagged("num_refs", {"from": _plain_bound(lower), "to": _plain_bound(upper)})
        case Always():
            return always
        case Never():
            return "false"


def _plain_bound(bound: Bound | None) -> object:
    if bound is None:
        return "Unbounded"
    return Tagged("Included" if bound.included else "Excluded", bound.value)


def _plain_dimension(condition: AnyDimCondition) -> object:
    match condition:
        case ManifestSplitDimCondition.Axis(axis):
            return Tagged("Axis", axis)
        case ManifestSplitDimCondition.DimensionName(regex):
            return Tagged("DimensionName", regex)
        case _:
            return "Any"


def _plain_sizes(config: ManifestSplittingConfig) -> object:
    if config.split_sizes is None:
        return None
    return [
        [
            _plain_rule(condition.rule, always="any_array"),
            [
                {"condition": _plain_dimension(dimension), "num_chunks": size}
                for dimension, size in dimensions
            ],
        ]
        for condition, dimensions in config.split_sizes
    ]


_SPECIAL: dict[tuple[type[Settings], str], Callable[[object], object]] = {
    (CompressionConfig, "algorithm"): _algorithm,
    (ManifestPreloadConfig, "preload_if"): _preload_if,
    (ManifestSplittingConfig, "split_sizes"): lambda value: tuple(_split_sizes(value)),
    (RepositoryConfig, "virtual_chunk_containers"): _containers,
}
