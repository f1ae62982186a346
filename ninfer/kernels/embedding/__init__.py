"""embedding: rows of a stored table, by index.

Math: out[t] = W[token_ids[t]].
Shapes: token_ids [T]; W [V, H], see `weights.prepare_table`; out [T, H].
Dtypes: token_ids int64; out fp32; W any format of the artifact but int32.
Domain: 0 <= token_ids < V; any T >= 0. Ids on a CUDA device are not looked at before the launch: there, an id outside
    the table gives a row of NaN.
Effects: writes out.
Workspace: the compiled routes and CUDA need none, and read the ids when they run, so that a tape may look up new ones;
    the torch route gathers the stored bytes of the T rows, and their codes.
Numeric criterion: exact: the represented values, rounded to fp32 as the format says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.dispatch import problem
from ninfer.kernels.embedding import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.embedding.plan import plan
from ninfer.kernels.jit import on_device
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

if TYPE_CHECKING:
    from ninfer.kernels.weights import TableWeight

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "embedding": MappingProxyType(
            compiled_routes(compiled_cpu.embedding) | {Route.CPU_TORCH: torch_cpu.embedding, Route.CUDA: cuda.embedding}
        )
    }
)


def embedding(token_ids: torch.Tensor, table: TableWeight, out: torch.Tensor) -> None:
    """Write the table's rows at `token_ids` to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract, or an id outside the table that the host can see.
    """
    tokens = token_ids.numel()
    check("embedding", "token_ids", token_ids, (tokens,), torch.int64)
    check("embedding", "out", out, (tokens, table.columns), torch.float32)
    if tokens == 0:
        return
    if not on_device(token_ids):
        _check_ids(token_ids, table.rows)
    route = plan(problem(out, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["embedding"][route](token_ids, table, out)


def _check_ids(token_ids: torch.Tensor, rows: int) -> None:
    low, high = torch.aminmax(token_ids)
    if int(low) < 0 or int(high) >= rows:
        raise ValueError(f"embedding: token ids must lie in [0, {rows}), got {int(low)} to {int(high)}")
