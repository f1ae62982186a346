"""gdn: the gated delta-net recurrence, for prefill and decode alike; gdn_fold: the same without reading.

Math, per row, token t and value head j with key head j // (Nv / Nk), in fp32 and in this order:
    k' = k / sqrt(sum k^2 + 1e-6), q' = q / sqrt(sum q^2 + 1e-6);
    S <- exp(g) S (decay); r = S k' (read); u = beta (v - r) (correct); S <- S + u k'^T (rank-one update);
    out = (S q') / sqrt(dk).
    Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464, equation 10.
Shapes: qkv [T, 2 Nk dk + Nv dv], a token's queries, then its keys, then its values, as the convolution writes them;
    g, beta [T, Nv]; state [S, Nv, dv, dk]; slots one pair per row of `segments`; out [T, Nv, dv].
Dtypes: all fp32.
Domain: g <= 0; Nk divides Nv; slots below S. On CUDA, rows of 64 tokens and more: 0 <= beta <= 2, and states and
    values below 2^60.
Effects: writes out and state[targets]; every other slot keeps its bits. `gdn_fold` writes exactly the state that
    `gdn` writes, bit for bit, and no output; it does not read the queries.
Workspace: the compiled routes keep 2 Nk + Nv numbers per token. The torch route allocates normalised keys and queries,
    spread over the value heads. CUDA keeps 145 KB of each head's next chunks (see plan.py), up to 28 MB for heads of
    128 x 128, in the workspace "gdn"; none for rows below 64 tokens.
Numeric criterion: tolerances.RECURRENCE against the oracle. The recurrence runs token by token, so out and state
    have the same bits however a sequence is cut into calls, in whatever batch and slots (torch: of a multiple of 16
    bytes). The compiled routes multiply sums by a key's and a query's inverse norms, and by the decay, instead of their
    terms. CUDA does so for rows below 64 tokens; longer rows go in chunks of 64, which meet the same tolerance with
    other bits: the same in whatever batch and slots, and however a sequence is cut into calls of at least 64 tokens at
    multiples of 64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.gdn import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.gdn.plan import plan
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots, check_slots

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "gdn": MappingProxyType(
            compiled_routes(compiled_cpu.gdn) | {Route.CPU_TORCH: torch_cpu.gdn, Route.CUDA: cuda.gdn}
        ),
        "gdn_fold": MappingProxyType(
            compiled_routes(compiled_cpu.gdn_fold) | {Route.CPU_TORCH: torch_cpu.gdn_fold, Route.CUDA: cuda.gdn_fold}
        ),
    }
)


def gdn(
    qkv: torch.Tensor,
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
    _check("gdn", qkv, g, beta, state, slots, segments)
    check("gdn", "out", out, (segments.total, *state.shape[1:3]), torch.float32)
    route = plan(problem(qkv, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["gdn"][route](qkv, g, beta, state, slots, segments, out)


def gdn_fold(
    qkv: torch.Tensor,
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
    _check("gdn_fold", qkv, g, beta, state, slots, segments)
    route = plan(problem(qkv, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["gdn_fold"][route](qkv, g, beta, state, slots, segments)


def _check(
    op: str,
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
) -> None:
    tokens, width = check_matrix(op, "qkv", qkv, torch.float32)
    if state.dim() != 4 or not _key_heads(width, state):
        raise ValueError(
            f"{op}: state must be [S, Nv, dv, dk] and qkv [T, 2 Nk dk + Nv dv] with Nk dividing Nv, "
            f"got {list(state.shape)} and {list(qkv.shape)}"
        )
    check(op, "state", state, tuple(state.shape), torch.float32)
    check(op, "qkv", qkv, (segments.total, width), torch.float32)
    check(op, "g", g, (tokens, state.shape[1]), torch.float32)
    check(op, "beta", beta, (tokens, state.shape[1]), torch.float32)
    check_slots(op, state.shape[0], segments.batch, slots)


def _key_heads(width: int, state: torch.Tensor) -> int:
    """Nk, or 0 where no Nk that divides Nv gives this width."""
    _, heads, dv, dk = state.shape
    keys = max(width - heads * dv, 0)
    found = keys // (2 * dk)
    return found if found and 2 * dk * found == keys and heads % found == 0 else 0
