"""log_softmax_gather: log-probabilities of given tokens; top_logprobs: the likeliest tokens and theirs.

Math: lp(i) = logits[i] - max(logits) - log(sum_j exp(logits[j] - max(logits))), row by row.
    log_softmax_gather: out[t] = lp(targets[t]). top_logprobs: the k greatest lp, falling; ties: lower id first.
Shapes: logits [T, V]; targets, out [T]; ids_out, values_out [T, k].
Dtypes: logits, out, values_out fp32; targets, ids_out int64. Natural logarithms.
Domain: no NaN and no +inf; a finite logit in every row; 0 <= targets < V; 0 <= k <= V; any T >= 0.
Effects: writes the outputs.
Workspace: the compiled routes keep one value per 256 columns of every row (the CUDA route two); the torch route
    allocates one tensor of V per row, a row at a time.
Numeric criterion: tolerances.LOG_PROBABILITY against the oracle, ids exact. The order of additions is fixed by the
    column alone, so a row's bits are its own, and `top_logprobs` gives a token exactly the value of
    `log_softmax_gather`. A row with NaN spoils no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.jit import on_device
from ninfer.kernels.log_softmax_gather import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.log_softmax_gather.plan import plan
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "log_softmax_gather": MappingProxyType(
            compiled_routes(compiled_cpu.log_softmax_gather)
            | {Route.CPU_TORCH: torch_cpu.log_softmax_gather, Route.CUDA: cuda.log_softmax_gather}
        ),
        "top_logprobs": MappingProxyType(
            compiled_routes(compiled_cpu.top_logprobs)
            | {Route.CPU_TORCH: torch_cpu.top_logprobs, Route.CUDA: cuda.top_logprobs}
        ),
    }
)


def log_softmax_gather(logits: torch.Tensor, targets: torch.Tensor, out: torch.Tensor) -> None:
    """Write the log-probability of each row's target to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract, or, on a CPU, a target outside the vocabulary. CUDA gives
            such a target NaN: the host does not read the device to find out.
    """
    rows, vocab = check_matrix("log_softmax_gather", "logits", logits, torch.float32)
    check("log_softmax_gather", "targets", targets, (rows,), torch.int64)
    check("log_softmax_gather", "out", out, (rows,), torch.float32)
    if rows and not on_device(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < vocab:
        raise ValueError(f"log_softmax_gather: targets must lie in [0, {vocab}), got {targets.tolist()}")
    route = plan(problem(logits, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["log_softmax_gather"][route](logits, targets, out)


def top_logprobs(logits: torch.Tensor, k: int, ids_out: torch.Tensor, values_out: torch.Tensor) -> None:
    """Write the k likeliest tokens of each row and their log-probabilities; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract, or k outside the vocabulary.
    """
    rows, vocab = check_matrix("top_logprobs", "logits", logits, torch.float32)
    if not 0 <= k <= vocab:
        raise ValueError(f"top_logprobs: k must lie in [0, {vocab}], got {k}")
    check("top_logprobs", "ids_out", ids_out, (rows, k), torch.int64)
    check("top_logprobs", "values_out", values_out, (rows, k), torch.float32)
    route = plan(problem(logits, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["top_logprobs"][route](logits, k, ids_out, values_out)
