"""Typed access to the members of a JSON object, with errors that name file and JSON path."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from ninfer.errors import ConfigError

Json = Mapping[str, object]


class Fields:
    """One JSON object and where it stands; every getter raises `ConfigError` naming the member.

    Getters mark a member as read, so `unread()` tells which members nobody interpreted.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected a JSON object, found {_kind(value)}")
        self.where = where
        self._value: Json = value
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def names(self) -> tuple[str, ...]:
        return tuple(self._value)

    def unread(self) -> tuple[str, ...]:
        return tuple(name for name in self._value if name not in self._read)

    def path(self, name: str) -> str:
        return f"{self.where}.{name}"

    def get(self, name: str) -> object:
        """The member, or None when it is absent or null."""
        self._read.add(name)
        return self._value.get(name)

    def required(self, name: str) -> object:
        value = self.get(name)
        if value is None:
            raise ConfigError(f"{self.path(name)}: required member is missing")
        return value

    def integer(self, name: str, *, minimum: int = 1) -> int:
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ConfigError(f"{self.path(name)}: expected an integer >= {minimum}, found {value!r}")
        return value

    def number(self, name: str) -> float:
        """A positive finite number."""
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.path(name)}: expected a number, found {value!r}")
        if not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{self.path(name)}: expected a positive finite number, found {value!r}")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self.required(name)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path(name)}: expected true or false, found {value!r}")
        return value

    def text(self, name: str, allowed: Collection[str]) -> str:
        value = self.required(name)
        if not isinstance(value, str) or value not in allowed:
            raise ConfigError(f"{self.path(name)}: expected one of {sorted(allowed)}, found {value!r}")
        return value

    def texts(self, name: str, allowed: Collection[str]) -> tuple[str, ...]:
        values = self.sequence(name)
        for index, value in enumerate(values):
            if not isinstance(value, str) or value not in allowed:
                where = f"{self.path(name)}[{index}]"
                raise ConfigError(f"{where}: expected one of {sorted(allowed)}, found {value!r}")
        return tuple(str(value) for value in values)

    def integers(self, name: str, *, length: int | None = None, minimum: int = 0) -> tuple[int, ...]:
        values = self.sequence(name)
        if length is not None and len(values) != length:
            raise ConfigError(f"{self.path(name)}: expected {length} integers, found {len(values)}")
        result = []
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                where = f"{self.path(name)}[{index}]"
                raise ConfigError(f"{where}: expected an integer >= {minimum}, found {value!r}")
            result.append(value)
        return tuple(result)

    def sequence(self, name: str) -> Sequence[object]:
        value = self.required(name)
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{self.path(name)}: expected a list, found {_kind(value)}")
        return value

    def child(self, name: str) -> Fields:
        return Fields(self.required(name), self.path(name))

    def refuse_unread(self) -> None:
        """Raise when a member was not interpreted: an exact schema has no room for it."""
        unknown = self.unread()
        if unknown:
            raise ConfigError(f"{self.where}: unknown members {sorted(unknown)}")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
