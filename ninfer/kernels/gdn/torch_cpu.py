"""gdn with torch: five calls per token, each over all heads of one row, in place on the row's state.

Exactness: every call has the same shape for every token ([Nv, dv, dk] and [Nv, dk, 1]), whatever the number of
tokens and rows, so its order of work is the same too. Rows of a batch are not merged into one call on purpose:
torch's batched matrix-vector product was measured to give other bits for one matrix than for several. It was
also measured not to depend on the alignment of its operands, hence not on the slot.
"""

from __future__ import annotations

import math

import torch

from ninfer.kernels.exact import row_sum
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots, take_starts

_EPS = 1e-6


def gdn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    take_starts(state, slots)
    heads, key_dim = state.shape[1], state.shape[3]
    for row, target in enumerate(slots.targets):
        tokens = slice(segments.offsets[row], segments.offsets[row + 1])
        memory = state[target]
        queries = _columns(_spread(_normalised(q[tokens]), heads))
        reads = out[tokens].unsqueeze(-1).unbind(0)
        steps = _steps(k[tokens], v[tokens], g[tokens], beta[tokens])
        for step, query, read in zip(steps, queries, reads, strict=True):
            _transition(memory, *step)
            torch.bmm(memory, query, out=read)
    out.div_(math.sqrt(key_dim))


def gdn_fold(
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
) -> None:
    """See the contract in the package's docstring."""
    take_starts(state, slots)
    for row, target in enumerate(slots.targets):
        tokens = slice(segments.offsets[row], segments.offsets[row + 1])
        for step in _steps(k[tokens], v[tokens], g[tokens], beta[tokens]):
            _transition(state[target], *step)


Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _steps(k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> list[Step]:
    """Per token (decay [Nv,1,1], key [Nv,dk,1], key [Nv,1,dk], value [Nv,dv,1], strength [Nv,1,1])."""
    keys = _spread(_normalised(k), v.shape[1])
    decays = g.exp()[..., None, None].unbind(0)
    strengths = beta[..., None, None].unbind(0)
    rows, values = keys.unsqueeze(-2).unbind(0), v.unsqueeze(-1).unbind(0)
    return list(zip(decays, _columns(keys), rows, values, strengths, strict=True))


def _columns(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """x [T, Nv, dk] as T matrices [Nv, dk, 1], with the strides of a transposed row: eight times faster in bmm."""
    return x.unsqueeze(-2).transpose(-1, -2).unbind(0)


def _transition(
    memory: torch.Tensor,
    decay: torch.Tensor,
    key: torch.Tensor,
    key_row: torch.Tensor,
    value: torch.Tensor,
    strength: torch.Tensor,
) -> None:
    """Decay, read, correct, rank-one update: the one floating-point transition of the state [Nv, dv, dk]."""
    memory.mul_(decay)
    correction = torch.sub(value, torch.bmm(memory, key)).mul_(strength)
    memory.addcmul_(correction, key_row)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows.div(row_sum(rows.square()).add_(_EPS).sqrt_()).view(x.shape)


def _spread(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[T, Nk, dk] to [T, Nv, dk]: value head j takes key head j // (Nv / Nk)."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)
