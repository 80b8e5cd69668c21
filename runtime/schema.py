"""What a settings class says about its keys: types, defaults, limits and meanings.

A schema is a dataclass; a field annotated with ``Annotated[type, Setting(...)]`` says what its
type cannot. A field without a Setting is described by its type and its dataclass default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


class Absent(Enum):
    """Why a setting has no default value of its own."""

    REQUIRED = "required"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one setting besides the type of its field.

    Attributes:
        meaning: one sentence for the user.
        default: the value of a setting that is not written; REQUIRED if it must be written,
            DERIVED if it follows from others as ``default_text`` says.
        default_text: the default in words.
        key: name in the file, where it differs from the field's.
        written: type in the file, where it differs from the field's.
        low: least integer.
        high: largest integer.
        read: turns (key path, value as written) into the field's value; raises ConfigError.
        fits: what may be written, where type and limits do not say it.
        parts: keys that may stand under this one, with their meanings where they have a type.
    """

    meaning: str
    default: object = Absent.REQUIRED
    default_text: str = ""
    key: str = ""
    written: object = None
    low: int | None = None
    high: int | None = None
    read: Callable[[str, object], object] | None = None
    fits: str = ""
    parts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a schema: the field it fills, what may be written and its Setting."""

    name: str
    key: str
    kind: Any
    setting: Setting

    @property
    def fits(self) -> str:
        """What may be written, in words."""
        return self.setting.fits or describe_kind(self.kind, self.setting)

    @property
    def section(self) -> type[Any] | None:
        """Schema of the keys that are nested under this one."""
        return self.kind if isinstance(self.kind, type) and is_dataclass(self.kind) else None

    @property
    def may_be_null(self) -> bool:
        """Whether ``null`` is a way to leave the setting out."""
        return self.setting.default is Absent.DERIVED or NoneType in union_members(self.kind)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One row of the table of settings, as text."""

    key: str
    kind: str
    default: str
    meaning: str


def entries(schema: type[Any]) -> Mapping[str, Entry]:
    """Return what a schema reads, by key, in the order of its fields."""
    hints = get_type_hints(schema, include_extras=True)
    found = [_entry(part.name, hints[part.name], part.default) for part in fields(schema)]
    return MappingProxyType({entry.key: entry for entry in found})


def places(schema: type[Any]) -> dict[str, str]:
    """Return key path -> key, for a schema and the parts of its settings."""
    found: dict[str, str] = {}
    for entry in entries(schema).values():
        found[entry.key] = entry.key
        found |= {f"{entry.key}.{part}": part for part in entry.setting.parts}
    return found


def setting_rows(schema: type[Any], path: str = "") -> list[SettingRow]:
    """Describe every setting, those of nested schemas after their section's."""
    rows: list[SettingRow] = []
    for entry in entries(schema).values():
        default = entry.setting.default_text or default_text(entry.setting.default)
        rows.append(SettingRow(path + entry.key, entry.fits, default, entry.setting.meaning))
        if entry.section is not None:
            parts = entry.setting.parts
            nested = setting_rows(entry.section, f"{path}{entry.key}.")
            rows += [_with_meaning(row, parts[row.key.rpartition(".")[2]]) for row in nested]
    return rows


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the alternatives of a type; a plain type is its only one."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def describe_kind(kind: Any, setting: Setting) -> str:
    """Say in words what a type and its limits accept."""
    members = [member for member in union_members(kind) if member is not NoneType]
    return " or ".join(_describe_member(member, setting) for member in members)


def default_text(value: object) -> str:
    """Write a default as a configuration file would."""
    if isinstance(value, Absent):
        return value.value
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return "see below" if is_dataclass(value) else str(value)


def _entry(name: str, hint: Any, default: object) -> Entry:
    kind, setting = hint, Setting("")
    if get_origin(hint) is Annotated:
        kind, setting = get_args(hint)
    elif default is not MISSING:
        setting = Setting("", default=default)
    return Entry(name, setting.key or name, setting.written or kind, setting)


def _with_meaning(row: SettingRow, meaning: str) -> SettingRow:
    return SettingRow(row.key, row.kind, row.default, meaning)


def _describe_member(member: Any, setting: Setting) -> str:
    origin = get_origin(member)
    if origin is Literal:
        choices = get_args(member)
        return str(choices[0]) if len(choices) == 1 else "one of " + ", ".join(choices)
    if origin is tuple:
        return f"a list, each {_describe_member(get_args(member)[0], setting)}"
    if origin is not None or is_dataclass(member):
        return "a mapping"
    if member is int:
        return "an integer" + _describe_limits(setting)
    return {float: "a number", bool: "true or false", str: "a string"}[member]


def _describe_limits(setting: Setting) -> str:
    low, high = setting.low, setting.high
    if low is not None and high is not None:
        return f" from {low} to {_describe_high(high)}"
    return f" of at least {low}" if low is not None else ""


def _describe_high(high: int) -> str:
    bits = high.bit_length()
    return f"2**{bits} - 1" if bits > 16 and high == 2**bits - 1 else str(high)
