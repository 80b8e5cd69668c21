"""Strict reading of plain data (parsed YAML) by a schema; the first misfit is an error.

Errors are ``<key.path>: <problem>; <what fits>``; whoever knows the file puts its name in front.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from copy import deepcopy
from datetime import date
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from .errors import ConfigError, NoriaError
from .schema import Entry, Setting, entries, places, union_members
from .value_text import key_text, value_text

NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
MEMORY_SIZE = re.compile(r"(\d{1,18})\s*(KiB|MiB|GiB|TiB)")
MEMORY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MAX_DIGITS = 10
"""Digits of the largest int32."""
MAX_BITS = 64
"""Of any integer: Python gives much longer ones no text, so no later error could show them."""
SIZE = Entry("", "", int, Setting("one size of a bucket list", low=1))
KIND_NAMES: Mapping[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "a list",
    dict: "a mapping",
    NoneType: "nothing",
}


class _Unfit(Exception):
    """A value is not of the wanted type."""


def read_settings(
    schema: type[Any], values: object, path: str = "", root: type[Any] | None = None
) -> dict[str, Any]:
    """Read the keys that are written, by field name; keys that are null count as not written.

    Args:
        schema: dataclass whose fields the keys fill.
        values: what the file holds at this level.
        path: key path of this level, "" or ending with a dot.
        root: schema of the whole file, to find where a misplaced key belongs.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or out of its limits.
    """
    if not isinstance(values, Mapping):
        refuse(path.rstrip(".") or "top level", shown(values), "must be a mapping of settings")
    known = entries(schema)
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            _refuse_unknown(key, value, path=path, known=known, root=root or schema)
        entry = known[key]
        if value is not None or not entry.may_be_null:
            given[entry.name] = _read_value(entry, value, path + key, root or schema)
    return given


def read_sizes(path: str, value: object) -> tuple[int, ...]:
    """Read a bucket list: positive integers, strictly ascending, at least one."""
    if not isinstance(value, list | tuple):
        refuse(path, shown(value), f"must be a list of integers{_as_list_hint(value)}")
    if not value:
        refuse(path, "is an empty list", "must hold at least one size, or leave the key out")
    sizes: list[int] = []
    for index, item in enumerate(value):
        size = _read_int(f"{path}[{index}]", item, SIZE)
        if sizes and size == sizes[-1]:
            refuse(path, f"lists {size} twice", "must be ascending, each size once")
        if sizes and size < sizes[-1]:
            refuse(path, f"lists {size} after {sizes[-1]}", "must be ascending")
        sizes.append(size)
    return tuple(sizes)


def read_memory_size(path: str, value: object) -> int:
    """Read bytes, or a whole number of KiB, MiB, GiB or TiB."""
    fits = "must be a whole number of bytes or a size such as 512MiB or 2GiB"
    if isinstance(value, str) and (match := MEMORY_SIZE.fullmatch(value)):
        value = int(match[1]) * MEMORY_UNITS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**MAX_BITS:
        refuse(path, shown(value), fits)
    return value


def refuse(path: str, problem: str, fits: str) -> NoReturn:
    """Raise the one-line error of a setting."""
    raise ConfigError(f"{path}: {problem}; {fits}")


def shown(value: object) -> str:
    """Say what was read and of which type, long values shortened."""
    if value is None:
        return "has no value"
    return f"is {_literal(value)} ({KIND_NAMES.get(type(value), 'a ' + type(value).__name__)})"


def nearest(name: str, names: list[str]) -> str | None:
    """Return the name that was probably meant; hyphens and capitals count as slips."""
    matches = difflib.get_close_matches(_normal(name), names, 1)
    return matches[0] if matches else None


def _literal(value: object) -> str:
    """Write a value as a file would, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, date) else value_text(value)


def _read_value(entry: Entry, value: object, path: str, root: type[Any]) -> object:
    if entry.setting.read is not None:
        return entry.setting.read(path, value)
    if entry.section is not None:
        return _read_section(entry.section, value, path, root)
    for member in union_members(entry.kind):
        try:
            converted = _convert(member, value)
        except _Unfit:
            continue
        if member is int:
            return _read_int(path, value, entry)
        return converted
    if isinstance(value, list | tuple) and get_origin(entry.kind) is tuple:
        _refuse_item(entry, value, path)
    refuse(path, shown(value), f"must be {entry.fits}{_as_int_hint(entry, value)}")


def _read_section(schema: type[Any], value: object, path: str, root: type[Any]) -> object:
    given = read_settings(schema, value, f"{path}.", root)
    try:
        return schema(**given)
    except NoriaError as error:
        # A value class names the field first: "top_p is 1.1 ...".
        name, _, problem = str(error).partition(" ")
        raise ConfigError(f"{path}.{name}: {problem}") from None


def _read_int(path: str, value: object, entry: Entry) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(path, shown(value), f"must be {entry.fits}{_as_int_hint(entry, value)}")
    if not _is_within(value, entry.setting):
        refuse(path, f"is {_literal(value)}", f"must be {entry.fits}")
    return value


def _refuse_item(entry: Entry, values: list[object] | tuple[object, ...], path: str) -> NoReturn:
    """Name the first item of a list that does not fit."""
    kind = get_args(entry.kind)[0]
    item = Entry("", "", kind, entry.setting)
    for index, value in enumerate(values):
        try:
            _convert_item(kind, value)
        except _Unfit:
            hint = _as_int_hint(item, value)
            refuse(f"{path}[{index}]", shown(value), f"must be {item.fits}{hint}")
    raise AssertionError(f"{path}: every item fits")


def _convert(kind: Any, value: object) -> object:
    """Return the value as this type, or raise _Unfit."""
    origin = get_origin(kind)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert_item(get_args(kind)[0], item) for item in value)
    if origin is Literal and isinstance(value, str) and value in get_args(kind):
        return value
    if origin is Mapping and isinstance(value, Mapping):
        return deepcopy(dict(value))
    if kind is float:
        return _to_float(value)
    if type(value) is kind:
        return value
    raise _Unfit


def _convert_item(kind: Any, value: object) -> object:
    converted = _convert(kind, value)
    if isinstance(converted, int) and converted.bit_length() > MAX_BITS:
        raise _Unfit
    return converted


def _to_float(value: object) -> float:
    """Take finite numbers, and strings that spell one: YAML 1.1 reads ``1e-5`` as a string."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 10**308 else math.inf
    elif isinstance(value, str) and NUMBER.fullmatch(value):
        number = float(value)
    if not math.isfinite(number):
        raise _Unfit
    return number


def _is_within(value: int, setting: Setting) -> bool:
    low, high = setting.low, setting.high
    is_low, is_high = low is not None and value < low, high is not None and value > high
    return not is_low and not is_high and value.bit_length() <= MAX_BITS


def _as_int_hint(entry: Entry, value: object) -> str:
    """Spell the integer that was probably meant, if it would fit."""
    text = str(value) if isinstance(value, str | float) else ""
    if int not in union_members(entry.kind) or not NUMBER.fullmatch(text):
        return ""
    number = float(text)
    if not number.is_integer() or abs(number) >= 2**53:
        return ""
    return f": write {int(number)}" if _is_within(int(number), entry.setting) else ""


def _as_list_hint(value: object) -> str:
    """Spell the list of integers that was probably meant."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return ", like [128, 256]"
    text = value if isinstance(value, str) else value_text(value)
    parts = [part.strip() for part in text.strip("[]() ").split(",")]
    if not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        return ", like [128, 256]"
    return ": write [" + ", ".join(str(int(part)) for part in parts) + "]"


def _refuse_unknown(
    key: object, value: object, *, path: str, known: Mapping[str, Entry], root: type[Any]
) -> NoReturn:
    if not isinstance(key, str):
        refuse(f"{path}{value_text(key)}", f"the key {shown(key)}", "settings have names")
    everywhere = places(root)
    elsewhere = [place for place, name in everywhere.items() if name == _normal(key)]
    same_level = nearest(key, list(known))
    if _normal(key) in known:
        fits = f"write {known[_normal(key)].key}"
    elif elsewhere:
        fits = f"it belongs {_level(elsewhere[0])}: {elsewhere[0]}"
    elif same_level:
        fits = f"did you mean {path}{same_level}?"
    else:
        fits = _fitting_elsewhere(key, value, everywhere, known)
    refuse(path + key_text(key), "unknown setting", fits)


def _fitting_elsewhere(
    key: str, value: object, everywhere: Mapping[str, str], known: Mapping[str, Entry]
) -> str:
    """Say where the keys of an unknown section belong, or which name of another level is near."""
    held = [name for name in value if name in everywhere] if isinstance(value, Mapping) else []
    if held:
        return f"its keys ({', '.join(held)}) belong at the top level"
    near = nearest(key, list(everywhere.values()))
    if near:
        place = next(place for place, name in everywhere.items() if name == near)
        return f"did you mean {place}?"
    return f"the settings are {', '.join(known)}"


def _level(place: str) -> str:
    section = place.rpartition(".")[0]
    return f"under {section}" if section else "at the top level"


def _normal(name: str) -> str:
    return name.strip().lower().replace("-", "_")
