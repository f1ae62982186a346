"""What the ops are timed at: one module per family of ops gives works for a geometry.

A family is `works(setting) -> Iterator[Work]`, listed in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ops import attention, choice, experts, linear, recurrence, rowwise
from ops.geometry import GEOMETRIES, Experts, Geometry
from ops.work import Setting, Work

__all__ = ["FAMILIES", "GEOMETRIES", "Experts", "Geometry", "Setting", "Work"]

FAMILIES: Mapping[str, Callable[[Setting], Iterator[Work]]] = {
    "linear": linear.works,
    "attention": attention.works,
    "recurrence": recurrence.works,
    "choice": choice.works,
    "rowwise": rowwise.works,
    "experts": experts.works,
}
