"""The parameters of a row as the compiled kernel reads them, and the one part of them that grows."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Mapping


class Counts(ctypes.Structure):
    """How often each token was produced: `Counts` of rows.hpp."""

    _fields_ = (("ids", ctypes.c_void_p), ("counts", ctypes.c_void_p), ("count", ctypes.c_int64))


class Parameters(ctypes.Structure):
    """`Parameters` of rows.hpp."""

    _fields_ = (
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("presence", ctypes.c_double),
        ("frequency", ctypes.c_double),
        ("repetition", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("top_k", ctypes.c_int64),
        ("prompt_count", ctypes.c_int64),
        ("prompt_ids", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("purpose", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class TokenCounts:
    """How often each token was produced. Grows in place; a row that holds it sees what was added since."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        """`counts`: occurrences (> 0) by token."""
        self._places: dict[int, int] = {}
        self._ids = array("q")
        self._counts = array("q")
        self._packed = Counts()
        for token, count in (counts or {}).items():
            self._places[token] = len(self._ids)
            self._ids.append(token)
            self._counts.append(count)
        self._pack()

    def add(self, tokens: Iterable[int]) -> None:
        """Count these tokens once more."""
        for token in tokens:
            place = self._places.setdefault(token, len(self._ids))
            if place == len(self._ids):
                self._ids.append(token)
                self._counts.append(0)
            self._counts[place] += 1
        self._pack()

    def items(self) -> list[tuple[int, int]]:
        """(token, count) pairs in the order of first occurrence."""
        return list(zip(self._ids, self._counts, strict=True))

    @property
    def packed(self) -> Counts:
        """The counts as they lie in memory now."""
        return self._packed

    @property
    def address(self) -> int:
        """Where the compiled kernel finds the counts, for as long as this object lives."""
        return ctypes.addressof(self._packed)

    def _pack(self) -> None:
        self._packed.ids, self._packed.count = self._ids.buffer_info()
        self._packed.counts = self._counts.buffer_info()[0]
