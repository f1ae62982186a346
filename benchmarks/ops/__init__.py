"""What the ops are timed at: one module per family of ops gives works for a geometry.

A family is `works(geometry, tokens, formats) -> Iterator[Work]`, listed in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ops import attention, choice, linear, recurrence
from ops.geometry import GEOMETRIES, Geometry
from ops.work import Work

__all__ = ["FAMILIES", "GEOMETRIES", "Geometry", "Work"]

FAMILIES: Mapping[str, Callable[[Geometry, Sequence[int], Sequence[str]], Iterator[Work]]] = {
    "linear": linear.works,
    "attention": attention.works,
    "recurrence": recurrence.works,
    "choice": choice.works,
}
