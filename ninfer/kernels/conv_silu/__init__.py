"""conv_silu: depthwise causal convolution over tokens, then SiLU, with the preceding columns kept per sequence.

Math, with taps = K and row b's input preceded by its history: c_t = sum_{i<K} weight[i] * x_{t-K+1+i};
    out_t = c_t / (1 + exp(-c_t)).
Shapes: x, out [T, C]; weight [K, C] (the transpose of a conv1d weight [C, 1, K]); history [S, K-1, C], oldest
    column first; slots one pair per row of `segments`.
Dtypes: all fp32.
Domain: slots below S.
Effects: writes out and history[targets]: the last K-1 columns of (history, x) of the row, before convolution.
    Every other slot keeps its bits.
Workspace: the compiled and CUDA routes need none; the torch route allocates the padded rows.
Numeric criterion: tolerances.CONVOLUTION against the oracle, history exact. Products are added in rising i, so bits do
    not depend on the split of a sequence into calls nor on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.conv_silu import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.conv_silu.plan import plan
from ninfer.kernels.dispatch import problem
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots, check_slots

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "conv_silu": MappingProxyType(
            compiled_routes(compiled_cpu.conv_silu) | {Route.CPU_TORCH: torch_cpu.conv_silu, Route.CUDA: cuda.conv_silu}
        )
    }
)


def conv_silu(
    x: torch.Tensor,
    weight: torch.Tensor,
    history: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """Convolve each row of x after its history into out; see the module's contract.

    Raises:
        ValueError: a shape, dtype or slot outside the contract.
    """
    taps, channels = check_matrix("conv_silu", "weight", weight, torch.float32)
    for name, tensor in (("x", x), ("out", out)):
        check("conv_silu", name, tensor, (segments.total, channels), torch.float32)
    check("conv_silu", "history", history, (history.shape[0], taps - 1, channels), torch.float32)
    check_slots("conv_silu", history.shape[0], segments.batch, slots)
    route = plan(problem(x, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["conv_silu"][route](x, weight, history, slots, segments, out)
