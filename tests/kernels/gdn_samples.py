"""Random inputs of the recurrence, for tests of its routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ninfer.kernels.segments import Segments
from tests.kernels.harness import poisoned

Geometry = tuple[int, int, int, int]


@dataclass(frozen=True)
class Tokens:
    """The recurrence's inputs for T tokens of one geometry (Nk, Nv, dk, dv)."""

    qkv: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    geometry: Geometry

    def part(self, begin: int, end: int) -> Tokens:
        return Tokens(*(x[begin:end].clone() for x in self.all()), self.geometry)

    def all(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.qkv, self.g, self.beta

    def arrays(self) -> tuple[np.ndarray, ...]:
        """(q, k, v, g, beta) as the oracle takes them."""
        nk, nv, dk, dv = self.geometry
        q, k, v = np.split(self.qkv.numpy(), (nk * dk, 2 * nk * dk), axis=1)
        heads = q.reshape(-1, nk, dk), k.reshape(-1, nk, dk), v.reshape(-1, nv, dv)
        return *heads, self.g.numpy(), self.beta.numpy()

    def out(self) -> torch.Tensor:
        _, nv, _, dv = self.geometry
        return poisoned(len(self.g), nv, dv)


def sequence(tokens: int, nk: int, nv: int, dk: int, dv: int, seed: int = 0) -> Tokens:
    """Gates that forget up to a quarter per token."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(tokens, 2 * nk * dk + nv * dv, generator=generator)
    g = -torch.rand(tokens, nv, generator=generator) * 0.3
    beta = torch.rand(tokens, nv, generator=generator)
    return Tokens(qkv, g, beta, (nk, nv, dk, dv))


def joined(parts: Sequence[Tokens]) -> Tokens:
    """One after another, as rows of a call lie."""
    return Tokens(*(torch.cat(xs) for xs in zip(*(p.all() for p in parts), strict=True)), parts[0].geometry)


def segments_of(*counts: int) -> Segments:
    """Rows of so many tokens, each at the start of its sequence."""
    return Segments(counts, (0,) * len(counts))


def states(count: int, geometry: Geometry, seed: int = 1) -> torch.Tensor:
    """A store of `count` slots."""
    _, nv, dk, dv = geometry
    return torch.randn(count, nv, dv, dk, generator=torch.Generator().manual_seed(seed))
