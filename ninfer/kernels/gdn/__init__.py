"""gdn: the gated delta-net recurrence, for prefill and decode alike; gdn_fold: the same without reading.

Math, per row, token t and value head j with key head j // (Nv / Nk), in fp32 and in this order:
    k' = k / sqrt(sum k^2 + 1e-6), q' = q / sqrt(sum q^2 + 1e-6);
    S <- exp(g) S (decay); r = S k' (read); u = beta (v - r) (correct); S <- S + u k'^T (rank-one update);
    out = (S q') / sqrt(dk).
    Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464, equation 10.
Shapes: q, k [T, Nk, dk]; v, out [T, Nv, dv]; g, beta [T, Nv]; state [S, Nv, dv, dk]; slots one pair per row of
    `segments`.
Dtypes: all fp32.
Domain: g <= 0; Nk divides Nv; slots below S.
Effects: writes out and state[targets]; every other slot keeps its bits. `gdn_fold` writes exactly the state that
    `gdn` writes, bit for bit, and no output.
Workspace: the torch route allocates normalised keys and queries, spread over the value heads.
Numeric criterion: tolerances.RECURRENCE against the oracle. The recurrence runs token by token, so out and state
    have the same bits however a sequence is cut into calls, in whatever batch and slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.gdn import torch_cpu
from ninfer.kernels.gdn.plan import plan
from ninfer.kernels.routes import Problem, Route, device_kind
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots, check_slots

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "gdn": MappingProxyType({Route.CPU_TORCH: torch_cpu.gdn}),
        "gdn_fold": MappingProxyType({Route.CPU_TORCH: torch_cpu.gdn_fold}),
    }
)


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
    """Advance each row's state over its tokens and write what the queries read; see the module's contract.

    Raises:
        ValueError: a shape, dtype or slot outside the contract.
    """
    _check("gdn", k, v, g, beta, state, slots, segments)
    check("gdn", "q", q, tuple(k.shape), torch.float32)
    check("gdn", "out", out, tuple(v.shape), torch.float32)
    route = plan(Problem(device_kind(v)))[0]
    IMPLEMENTATIONS["gdn"][route](q, k, v, g, beta, state, slots, segments, out)


def gdn_fold(
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
) -> None:
    """Advance each row's state over recorded tokens, as `gdn` did; see the module's contract.

    Raises:
        ValueError: a shape, dtype or slot outside the contract.
    """
    _check("gdn_fold", k, v, g, beta, state, slots, segments)
    route = plan(Problem(device_kind(v)))[0]
    IMPLEMENTATIONS["gdn_fold"][route](k, v, g, beta, state, slots, segments)


def _check(
    op: str,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
) -> None:
    if state.dim() != 4 or k.dim() != 3 or k.shape[1] == 0 or state.shape[1] % k.shape[1]:
        raise ValueError(
            f"{op}: state must be [S, Nv, dv, dk] and k [T, Nk, dk] with Nk dividing Nv, "
            f"got {list(state.shape)} and {list(k.shape)}"
        )
    stored, heads, dv, dk = state.shape
    tokens = segments.total
    check(op, "state", state, (stored, heads, dv, dk), torch.float32)
    check(op, "k", k, (tokens, k.shape[1], dk), torch.float32)
    check(op, "v", v, (tokens, heads, dv), torch.float32)
    check(op, "g", g, (tokens, heads), torch.float32)
    check(op, "beta", beta, (tokens, heads), torch.float32)
    check_slots(op, stored, segments.batch, slots)
