"""How rotary positions are laid out over a head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

AXES = 3


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Partial, interleaved multimodal RoPE.

    Attributes:
        theta: base of the frequencies.
        rotary_dim: leading dimensions of a head that rotate; even.
        sections: frequency pairs of the axes (t, h, w); they sum to rotary_dim / 2.

    Raises:
        ValueError: naming what does not fit.
    """

    theta: float
    rotary_dim: int
    sections: tuple[int, int, int]

    def __post_init__(self) -> None:
        if self.theta <= 0:
            raise ValueError(f"rope: theta must be > 0, got {self.theta}")
        if self.rotary_dim <= 0 or self.rotary_dim % 2:
            raise ValueError(f"rope: rotary_dim must be positive and even, got {self.rotary_dim}")
        if min(self.sections) < 0 or sum(self.sections) != self.rotary_dim // 2:
            raise ValueError(f"rope: sections {self.sections} must sum to {self.rotary_dim // 2}")

    @property
    def axes(self) -> tuple[int, ...]:
        """The position axis of every frequency pair: 1 and 2 interleave with 0 as far as their sections reach."""
        return tuple(
            axis if axis and pair < AXES * self.sections[axis] else 0
            for pair in range(self.rotary_dim // 2)
            for axis in (pair % AXES,)
        )


@cache
def frequencies(rope: RopeSpec) -> torch.Tensor:
    """fp32 [rotary_dim / 2], rounded as the contract of qk_norm_rope says."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
    return 1.0 / (rope.theta**exponents)
