"""gdn_gates: the log decay and the write strength of every value head.

Math: g = -exp(a_log) * softplus(a + dt_bias), softplus(y) = log(1 + exp(y)); beta = 1 / (1 + exp(-b)).
Shapes: a, b, g_out, beta_out [T, Nv]; a_log, dt_bias [Nv].
Dtypes: all fp32.
Domain: finite inputs. The decay of the recurrence is alpha = exp(g), in (0, 1].
Effects: writes g_out and beta_out.
Workspace: none but in the torch route, which allocates a few tensors of [T, Nv].
Numeric criterion: tolerances.GATES against the oracle; element by element, so a row's bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.gdn_gates import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.gdn_gates.plan import plan
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "gdn_gates": MappingProxyType(
            compiled_routes(compiled_cpu.gdn_gates) | {Route.CPU_TORCH: torch_cpu.gdn_gates, Route.CUDA: cuda.gdn_gates}
        )
    }
)


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    g_out: torch.Tensor,
    beta_out: torch.Tensor,
) -> None:
    """Write the gates of each token and value head; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    tokens, heads = check_matrix("gdn_gates", "a", a, torch.float32)
    for name, tensor in (("b", b), ("g_out", g_out), ("beta_out", beta_out)):
        check("gdn_gates", name, tensor, (tokens, heads), torch.float32)
    for name, tensor in (("a_log", a_log), ("dt_bias", dt_bias)):
        check("gdn_gates", name, tensor, (heads,), torch.float32)
    route = plan(problem(a, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["gdn_gates"][route](a, b, a_log, dt_bias, g_out, beta_out)
