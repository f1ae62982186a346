"""argmax: the token id of the greatest allowed logit of each row.

Math: out[b] = min { i : logits[b, i] = max over allowed j of logits[b, j] }; token i is allowed when no mask is
    given or bit i % 32 of word i // 32 of its row's mask is set.
Shapes: logits [B, V]; mask [B, ceil(V / 32)] or [1, ceil(V / 32)] (one mask for all rows); out [B].
Dtypes: logits fp32; mask int32; out int64.
Domain: logits without NaN; every row has an allowed logit above -inf.
Effects: writes out. A row without an answer raises ValueError, and out is then unspecified.
Workspace: the compiled routes keep one value per 256 columns (the CUDA route 8 bytes); the torch route copies the
    logits when a mask is given.
Numeric criterion: exact; ties go to the lowest id. The answer is checked when the op returns, so no tape can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.argmax import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.argmax.plan import plan
from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "argmax": MappingProxyType(
            compiled_routes(compiled_cpu.argmax) | {Route.CPU_TORCH: torch_cpu.argmax, Route.CUDA: cuda.argmax}
        )
    }
)


def argmax(logits: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor) -> None:
    """Write the id of each row's greatest allowed logit to `out`; see the module's contract.

    Raises:
        ValueError: a tensor's shape or dtype, or a row that is all masked, all -inf or holds NaN.
    """
    batch, vocab = check_matrix("argmax", "logits", logits, torch.float32)
    check("argmax", "out", out, (batch,), torch.int64)
    if mask is not None:
        rows = 1 if mask.shape[:1] == (1,) else batch
        check("argmax", "mask", mask, (rows, -(-vocab // 32)), torch.int32)
    route = plan(problem(logits, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["argmax"][route](logits, mask, out)
