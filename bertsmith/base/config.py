"""Settings: frozen dataclasses, read from TOML or JSON mappings and changed by `name=value`.

A settings class nests others by field; every leaf is bool, int, float, str, None, or a tuple of these. An unknown name
is refused with the nearest known one, a value of the wrong type with the type that was expected.
"""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.base.files import read_text
from bertsmith.errors import ConfigError

Settings = TypeVar("Settings")


def from_mapping(cls: type[Settings], mapping: Mapping[str, Any], *, where: str) -> Settings:
    """An instance of the dataclass `cls` from a nested mapping; `where` opens every error message."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where}: a table was expected, found {_show(mapping)}")
    kinds = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for name in mapping:
        if name not in fields:
            near = nearest(name, fields)
            hint = f"; did you mean {near!r}?" if near else f"; known are: {', '.join(sorted(fields))}"
            raise ConfigError(f"{where}: unknown setting {name!r}{hint}")
    values = {name: _convert(value, kinds[name], f"{where}: {name}") for name, value in mapping.items()}
    missing = [name for name, field in fields.items() if name not in values and _required(field)]
    if missing:
        raise ConfigError(f"{where}: missing setting {missing[0]!r}")
    return cls(**values)


def to_mapping(settings: Any) -> dict[str, Any]:
    """The nested mapping from which `from_mapping` makes an equal instance; tuples become lists."""
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as a mapping; a syntax error names file and line."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def write_toml(settings: Mapping[str, Any]) -> str:
    """TOML text of a mapping of at most two levels; None is left out, since TOML has no word for it."""
    top = [
        f"{name} = {_literal(value)}"
        for name, value in settings.items()
        if not isinstance(value, Mapping) and value is not None
    ]
    tables = [
        "\n".join([f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in table.items() if value is not None)])
        for name, table in settings.items()
        if isinstance(table, Mapping)
    ]
    return "\n\n".join((["\n".join(top)] if top else []) + tables) + "\n"


def with_settings(settings: Settings, changes: Iterable[str]) -> Settings:
    """`settings` with every "name=value" (nested names with dots) applied in order."""
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {change}: a setting is written name=value, e.g. train.steps=120")
        settings = _with(settings, name.strip().split("."), parse_value(text.strip()), f"--set {change}")
    return settings


def parse_value(text: str) -> Any:
    """A TOML value; `none` is None; anything that is no TOML value is taken as a string as it stands."""
    if text.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is probably a slip of."""
    known = list(known)
    by_tail = [candidate for candidate in known if candidate.split(".")[-1] == name.split(".")[-1]]
    return next(iter(by_tail or difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)


def setting_names(cls: type, prefix: str = "") -> list[str]:
    """Every leaf name with dots: ["train.steps", ...]."""
    names = []
    for name, kind in typing.get_type_hints(cls).items():
        nested = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        names += setting_names(kind, f"{prefix}{name}.") if nested else [prefix + name]
    return names


def _with(settings: Any, path: Sequence[str], value: Any, where: str, root: Any = None, full: str = "") -> Any:
    root, full = (settings, ".".join(path)) if root is None else (root, full)
    fields = {field.name for field in dataclasses.fields(settings)}
    name = path[0]
    if name not in fields:
        near = nearest(full, setting_names(type(root)))
        raise ConfigError(
            f"{where}: unknown setting {name!r}"
            + (f"; did you mean {near!r}?" if near else f"; known are: {', '.join(sorted(fields))}")
        )
    old = getattr(settings, name)
    if dataclasses.is_dataclass(old):
        if len(path) == 1:
            inside = ", ".join(setting_names(type(old), name + "."))
            raise ConfigError(f"{where}: {name!r} is a group of settings; name one of: {inside}")
        return dataclasses.replace(settings, **{name: _with(old, path[1:], value, where, root, full)})
    if len(path) > 1:
        raise ConfigError(f"{where}: {name!r} has no settings inside")
    kind = typing.get_type_hints(type(settings))[name]
    return dataclasses.replace(settings, **{name: _convert(value, kind, where)})


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(value: Any, kind: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else from_mapping(kind, value, where=where)  # type: ignore[arg-type]
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _first_that_fits(value, [a for a in arguments if a is not type(None)], kind, where)
    if origin is typing.Literal:
        if value not in arguments:
            near = nearest(str(value), [str(a) for a in arguments])
            raise ConfigError(
                f"{where}: {_show(value)} is none of {', '.join(map(str, arguments))}"
                + (f"; did you mean {near!r}?" if near else "")
            )
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where}: a list was expected, found {_show(value)}")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_convert(item, arguments[0], where) for item in value)
        if len(value) != len(arguments):
            raise ConfigError(f"{where}: {len(arguments)} values were expected, found {len(value)}")
        return tuple(_convert(item, k, where) for item, k in zip(value, arguments, strict=True))
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where}: {_name(kind)} was expected, found {_show(value)}")
    return value


def _first_that_fits(value: Any, kinds: Sequence[Any], whole: Any, where: str) -> Any:
    if len(kinds) == 1:
        return _convert(value, kinds[0], where)
    for kind in kinds:
        try:
            return _convert(value, kind, where)
        except ConfigError:
            continue
    raise ConfigError(f"{where}: {' or '.join(_name(k) for k in kinds)} was expected, found {_show(value)}")


def _name(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def _show(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _literal(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, float) and value != value:
        return "nan"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else repr(value)
