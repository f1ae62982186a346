"""Official geometries of the family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Experts:
    """How many experts a block has, how many a token chooses, and their width."""

    count: int
    chosen: int
    size: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one family member that ops depend on."""

    hidden: int
    intermediate: int
    vocabulary: int
    query_heads: int
    key_heads: int
    head_dim: int
    rotary_dim: int
    gdn_key_heads: int
    gdn_value_heads: int
    gdn_head_dim: int
    experts: Experts | None = None

    @property
    def conv_width(self) -> int:
        """Columns of a GDN block's convolution: queries, keys and values."""
        return (2 * self.gdn_key_heads + self.gdn_value_heads) * self.gdn_head_dim


GEOMETRIES: Mapping[str, Geometry] = MappingProxyType(
    {
        "0.8b": Geometry(1024, 3584, 248320, 8, 2, 256, 64, 16, 16, 128),
        "27b": Geometry(5120, 17408, 248320, 24, 4, 256, 64, 16, 48, 128),
        "35b-a3b": Geometry(2048, 512, 248320, 16, 2, 256, 64, 16, 32, 128, Experts(256, 8, 512)),
    }
)
