"""Every mathematical operation the models use, one folder per op, on torch tensors.

A folder holds `__init__.py` (the contract: Math, Shapes, Dtypes, Domain, Effects, Workspace, Numeric
criterion; then checks and dispatch), `oracle.py` (fp64 NumPy from the represented inputs, one function per
op under the op's own name), `cases.py` (`CASES`: op name -> the shapes it is checked and timed at),
`plan.py` (`Problem`, and `plan(problem)`: the routes that serve it, best first) and one module per route.
A folder's `IMPLEMENTATIONS` maps each op name to its routes, so that a test can run them all.

What every op keeps:
- A row's result has the same bits whatever the number of rows, its position among them and the batch.
- Results go to tensors given by the caller; inputs are never modified.
- Activations are fp32 and contiguous. A wrong shape, dtype or stride is a ValueError that names op and
  argument; a combination of formats that an op cannot compute is a ConfigError.
- Ops never set torch's thread count; its value does not change any result.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from ninfer.kernels.argmax import argmax
from ninfer.kernels.conv_silu import conv_silu
from ninfer.kernels.embedding import embedding
from ninfer.kernels.gated_rmsnorm import gated_rmsnorm
from ninfer.kernels.gated_sigmoid import gated_sigmoid
from ninfer.kernels.gdn import gdn, gdn_fold
from ninfer.kernels.gdn_gates import gdn_gates
from ninfer.kernels.kv_cache import kv_append
from ninfer.kernels.linear import linear, projections
from ninfer.kernels.log_softmax_gather import log_softmax_gather, top_logprobs
from ninfer.kernels.mlp import gate_up_swiglu, swiglu
from ninfer.kernels.moe import moe_experts, moe_route, moe_shared_add
from ninfer.kernels.native import BODIES
from ninfer.kernels.paged_attention import paged_attention
from ninfer.kernels.qk_norm_rope import qk_norm_rope, qk_norm_rope_append
from ninfer.kernels.rmsnorm import rmsnorm
from ninfer.kernels.sampling import sample

CATALOGUE: Mapping[str, str] = MappingProxyType(
    {
        "argmax": "ninfer.kernels.argmax",
        "conv_silu": "ninfer.kernels.conv_silu",
        "embedding": "ninfer.kernels.embedding",
        "gate_up_swiglu": "ninfer.kernels.mlp",
        "gated_rmsnorm": "ninfer.kernels.gated_rmsnorm",
        "gated_sigmoid": "ninfer.kernels.gated_sigmoid",
        "gdn": "ninfer.kernels.gdn",
        "gdn_fold": "ninfer.kernels.gdn",
        "gdn_gates": "ninfer.kernels.gdn_gates",
        "kv_append": "ninfer.kernels.kv_cache",
        "linear": "ninfer.kernels.linear",
        "log_softmax_gather": "ninfer.kernels.log_softmax_gather",
        "moe_experts": "ninfer.kernels.moe",
        "moe_route": "ninfer.kernels.moe",
        "moe_shared_add": "ninfer.kernels.moe",
        "paged_attention": "ninfer.kernels.paged_attention",
        "projections": "ninfer.kernels.linear",
        "qk_norm_rope": "ninfer.kernels.qk_norm_rope",
        "qk_norm_rope_append": "ninfer.kernels.qk_norm_rope",
        "rmsnorm": "ninfer.kernels.rmsnorm",
        "sample": "ninfer.kernels.sampling",
        "swiglu": "ninfer.kernels.mlp",
        "top_logprobs": "ninfer.kernels.log_softmax_gather",
    }
)
"""Op name -> the module that holds its contract, `oracle`, `cases` and `plan`."""


def has_compiled_routes() -> bool:
    """True if every op has a compiled route, so that a whole forward pass can be recorded."""
    routes = (import_module(module).IMPLEMENTATIONS[op] for op, module in CATALOGUE.items())
    return all(not set(BODIES).isdisjoint(implementations) for implementations in routes)


__all__ = [
    "CATALOGUE",
    "argmax",
    "conv_silu",
    "embedding",
    "gate_up_swiglu",
    "gated_rmsnorm",
    "gated_sigmoid",
    "gdn",
    "gdn_fold",
    "gdn_gates",
    "has_compiled_routes",
    "kv_append",
    "linear",
    "log_softmax_gather",
    "moe_experts",
    "moe_route",
    "moe_shared_add",
    "paged_attention",
    "projections",
    "qk_norm_rope",
    "qk_norm_rope_append",
    "rmsnorm",
    "sample",
    "swiglu",
    "top_logprobs",
]
