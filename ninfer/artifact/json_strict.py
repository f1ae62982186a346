"""Strict JSON: what the standard parser forgives, the artifact does not. Every error names file and path.

Refused beyond plain syntax: duplicate member names, invalid UTF-8, lone surrogates, NaN and infinities,
bottomless nesting, and wherever an integer is due anything that is not an exact u64 (1.0, 1e3, true).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ninfer.artifact.layouts import U64_MAX
from ninfer.errors import ArtifactError

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Stands in the parsed tree for an object that names one member twice."""

    name: str


class Node(NamedTuple):
    """One JSON value and where it came from; readers check the type they need.

    A directory holds hundreds of thousands of values: so it is a tuple, which is made several times faster than a
    frozen dataclass, and its path is put together only for a message.
    """

    where: str
    value: Any
    parent: Node | None = None
    key: str | int = ""

    @property
    def path(self) -> str:
        """JSON path from the root `$`; names that are no plain identifiers are quoted."""
        steps = []
        node = self
        while node.parent is not None:
            steps.append(_step(node.key))
            node = node.parent
        return "$" + "".join(reversed(steps))

    def child(self, key: str | int, value: Any) -> Node:
        """The member or element `key` of this value."""
        return Node(self.where, value, self, key)

    def fail(self, expected: str) -> NoReturn:
        raise ArtifactError(f"{self.where}: {self.path}: expected {expected}, got {_describe(self.value)}")

    def refuse(self, message: str) -> NoReturn:
        raise ArtifactError(f"{self.where}: {self.path}: {message}")

    def open_object(self) -> JsonObject:
        """The raw value of an object whose members are not checked."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        return self.value

    def entries(self) -> dict[str, Node]:
        """The members of an object that is a map from IDs."""
        for name in self.open_object():
            if not name or "\0" in name:
                self.refuse(f"member names must be non-empty and without U+0000, got {name!a}")
        return {name: self.child(name, value) for name, value in self.value.items()}

    def members(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Node]:
        """The members of an object that must have all of `required` and nothing beyond `optional`."""
        present = self.open_object()
        for name in required:
            if name not in present:
                self.refuse(f"the member {name!r} is missing")
        for name in present:
            if name not in required and name not in optional:
                known = ", ".join((*required, *optional))
                self.refuse(f"unknown member {name!a}; expected only {known}")
        return {name: self.child(name, value) for name, value in present.items()}

    def items(self, *, non_empty: bool = False) -> list[Node]:
        if not isinstance(self.value, list) or (non_empty and not self.value):
            self.fail("a non-empty array" if non_empty else "an array")
        return [self.child(index, value) for index, value in enumerate(self.value)]

    def integer(self, minimum: int = 0) -> int:
        """An exact integer in [minimum, 2^64 - 1]."""
        if type(self.value) is not int or not minimum <= self.value <= U64_MAX:
            self.fail(f"an integer in [{minimum}, 2^64-1]")
        return self.value

    def identifier(self) -> str:
        """A non-empty string without U+0000."""
        if not isinstance(self.value, str) or not self.value or "\0" in self.value:
            self.fail("a non-empty string without U+0000")
        return self.value

    def choice(self, allowed: tuple[str, ...]) -> str:
        if not isinstance(self.value, str) or self.value not in allowed:
            self.fail("one of " + ", ".join(allowed))
        return self.value


def parse(data: bytes, where: str) -> Node:
    """Parse UTF-8 JSON strictly; the root has the path `$`. Raises ArtifactError."""
    root = Node(where, None)
    duplicates: list[str] = []
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _members(pairs, duplicates),
            parse_float=_finite_float,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError as error:
        root.refuse(f"the directory is not valid UTF-8 (byte {error.start})")
    except RecursionError:
        root.refuse("the directory nests too deeply")
    except ValueError as error:
        root.refuse(f"the directory is not valid JSON: {error}")
    # Only an escape can smuggle a surrogate past the UTF-8 decoder, so most files need no walk.
    if duplicates or "\\ud" in text or "\\uD" in text:
        _refuse_hidden(Node(where, value))
    return Node(where, value)


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if key.isidentifier() and key.isascii() else f"[{json.dumps(key)}]"


def _members(pairs: list[tuple[str, Any]], duplicates: list[str]) -> JsonObject | Duplicate:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    counts = Counter(name for name, _ in pairs)
    name = counts.most_common(1)[0][0]
    duplicates.append(name)
    return Duplicate(name)


def _refuse_hidden(root: Node) -> None:
    for node in _walk(root):
        if isinstance(node.value, Duplicate):
            node.refuse(f"the member {node.value.name!a} appears twice")
        names = node.value if isinstance(node.value, dict) else ()
        if any(not _encodable(text) for text in (*names, node.value) if isinstance(text, str)):
            node.refuse("a string or member name holds a lone surrogate")


def _walk(root: Node) -> Iterator[Node]:
    """Every value of the tree, without recursion."""
    stack = [iter([root])]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node
        if isinstance(node.value, dict | list):
            stack.append(_children(node))


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node.value, dict):
        for name, value in node.value.items():
            yield node.child(name, value)
    else:
        for index, value in enumerate(node.value):
            yield node.child(index, value)


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is beyond the range of a double")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _describe(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
