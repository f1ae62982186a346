"""Which bytes of one object have been written: a sorted list of disjoint intervals."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from ninfer.errors import ArtifactError


class Coverage:
    """Bytes of `[0, size)` written so far; adjacent intervals are merged, overlaps refused."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.missing = size

    def add(self, begin: int, end: int) -> None:
        """Mark `[begin, end)` as written.

        Raises:
            ArtifactError: the range lies outside the object or overlaps bytes written before.
        """
        if not 0 <= begin <= end <= self._size:
            raise ArtifactError(f"object {self._name!r}: bytes [{begin}, {end}) lie outside its {self._size} bytes")
        if begin == end:
            return
        at = bisect_left(self._begins, end)
        if at and self._ends[at - 1] > begin:
            raise ArtifactError(f"object {self._name!r}: bytes [{begin}, {end}) overlap bytes written before")
        self.missing -= end - begin
        self._insert(at, begin, end)

    def _insert(self, at: int, begin: int, end: int) -> None:
        joins_next = at < len(self._begins) and self._begins[at] == end
        if joins_next:
            self._begins[at] = begin
        else:
            self._begins.insert(at, begin)
            self._ends.insert(at, end)
        if at and self._ends[at - 1] == begin:
            self._ends[at - 1] = self._ends.pop(at)
            self._begins.pop(at)

    def holes(self) -> Iterator[tuple[int, int]]:
        """The ranges not yet written, in order, as of this call."""
        edges = [0, *(edge for pair in zip(self._begins, self._ends, strict=True) for edge in pair), self._size]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if begin < end:
                yield begin, end
