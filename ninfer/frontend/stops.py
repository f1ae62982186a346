"""Stop strings over a stream of text: which comes first, and how much of the end could still become one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string of `length` characters is complete after `end` characters of the text just fed."""

    end: int
    length: int


class StopStrings:
    """Knuth-Morris-Pratt over several strings at once; the state is one matched length per string.

    The stop that is complete first wins (of several complete at the same character, the longest), so the answer does
    not depend on how the text is cut. Constant work per character and string.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        assert all(strings)
        self._strings = strings
        self._failures = tuple(_failure_table(string) for string in strings)

    @property
    def start(self) -> tuple[int, ...]:
        """The state before any text."""
        return (0,) * len(self._strings)

    def feed(self, matched: tuple[int, ...], text: str) -> tuple[tuple[int, ...], StopHit | None]:
        """The state after `text` (max(state) characters at its end could begin a stop), and the first hit in it."""
        lengths = list(matched)
        for position, char in enumerate(text):
            hits = [n for i in range(len(lengths)) if (n := self._advance(lengths, i, char))]
            if hits:
                return tuple(lengths), StopHit(position + 1, max(hits))
        return tuple(lengths), None

    def _advance(self, lengths: list[int], which: int, char: str) -> int:
        """Move one string's matched length over `char`; its full length if that completes it, else 0."""
        string, failure, matched = self._strings[which], self._failures[which], lengths[which]
        while matched and string[matched] != char:
            matched = failure[matched - 1]
        if string[matched] == char:
            matched += 1
        lengths[which] = matched
        return matched if matched == len(string) else 0


def _failure_table(string: str) -> tuple[int, ...]:
    """For every prefix, the length of its longest proper border."""
    table = [0] * len(string)
    border = 0
    for i in range(1, len(string)):
        while border and string[border] != string[i]:
            border = table[border - 1]
        if string[border] == string[i]:
            border += 1
        table[i] = border
    return tuple(table)
