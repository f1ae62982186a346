"""gdn with torch: five calls per token, each over all heads of one row, in place on the row's state.

Exactness: every call has the same shape for every token ([Nv, dv, dk] and [Nv, dk, 1]), whatever the number of
tokens and rows, so its order of work is the same too. Rows of a batch are not merged into one call on purpose:
torch's batched matrix-vector product was measured to give other bits for one matrix than for several. It was
also measured not to depend on the alignment of its operands, hence not on the slot, while all slots are aligned to 16
bytes.
"""

from __future__ import annotations

import math

import torch

from ninfer.kernels.exact import row_sum
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots, take_starts

_EPS = 1e-6


def gdn(
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    take_starts(state, slots)
    _, heads, dv, dk = state.shape
    q, k, v = _parts(qkv, heads, dv, dk)
    for row, target in enumerate(slots.targets):
        tokens = slice(segments.offsets[row], segments.offsets[row + 1])
        memory = state[target]
        queries = _columns(_spread(_normalised(q[tokens]), heads))
        reads = out[tokens].unsqueeze(-1).unbind(0)
        steps = _steps(k[tokens], v[tokens], g[tokens], beta[tokens])
        for step, query, read in zip(steps, queries, reads, strict=True):
            _transition(memory, *step)
            torch.bmm(memory, query, out=read)
    out.div_(math.sqrt(dk))


def gdn_fold(
    qkv: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor, slots: StateSlots, segments: Segments
) -> None:
    """See the contract in the package's docstring."""
    take_starts(state, slots)
    _, k, v = _parts(qkv, *state.shape[1:])
    for row, target in enumerate(slots.targets):
        tokens = slice(segments.offsets[row], segments.offsets[row + 1])
        for step in _steps(k[tokens], v[tokens], g[tokens], beta[tokens]):
            _transition(state[target], *step)


def _parts(qkv: torch.Tensor, heads: int, dv: int, dk: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views (q [T, Nk, dk], k [T, Nk, dk], v [T, Nv, dv])."""
    keys = (qkv.shape[1] - heads * dv) // 2
    q, k, v = torch.split(qkv, [keys, keys, heads * dv], dim=1)
    tokens = len(qkv)
    return q.view(tokens, -1, dk), k.view(tokens, -1, dk), v.view(tokens, heads, dv)


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
