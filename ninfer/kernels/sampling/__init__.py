"""sample: one token per row from the processed distribution of its logits.

Math, per row, in this order, in fp64:
    1. grammar mask: z_i = logit_i if allowed, else -inf;
    2. penalties: z_i = z_i / r if z_i > 0 else z_i * r, for tokens of prompt and output (repetition r, the rule
       of Hugging Face transformers); then z_i -= presence + frequency * count_i for output tokens (OpenAI's rule);
    3. temperature: w_i = exp((z_i - max z) / t); t <= 0 takes the greatest z_i (ties: lowest id) and stops;
    4. top-k: the k greatest z_i (ties: lower id);
    5. top-p: of these, sorted by falling w (ties: lower id), the shortest prefix with sum >= top_p * sum of all;
    6. min-p: of these, those with w_i >= min_p * max w;
    7. p = w / sum w; the draw is the first token in that order whose running sum of p exceeds u, where
       u = philox.uniform(seed, position, purpose).
Shapes: logits [B, V]; params one `SamplingRow` and one position per row of logits; out_ids [B].
Dtypes: logits fp32; out_ids int64; ids and counts int64; masks int32 (`mask_words`, `allow_only`).
Domain: logits finite or -inf; every row has an allowed logit above -inf.
Effects: writes out_ids. `SampleFault` names all rows without an answer, and then nothing is written.
Workspace: the compiled routes keep one value per 256 columns, a mask for every row with penalties, and for rows that
    neither top-k nor min-p bounds some 2 KB per 8192 columns; then the candidates of one row at a time. The CUDA route
    keeps 8 bytes per 256 columns, a mask and 2 KB per row, and 16 bytes per penalised token. The torch route allocates
    a few fp64 vectors of V per row.
Numeric criterion: probabilities within 1e-11, relatively, of the oracle, the drawn id equal to the oracle's. Sums are
    taken in an order that the row alone decides, so a token never depends on the other rows. The answer is checked
    when the op returns, so no tape can hold it.

`distribution` gives step 6's p to callers that need it whole, for example to verify drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.bitset import allow_only, mask_words
from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.philox import Purpose, uniform
from ninfer.kernels.routes import Route
from ninfer.kernels.sampling import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.sampling.packed import TokenCounts
from ninfer.kernels.sampling.params import SampleFault, SamplingBatch, SamplingRow
from ninfer.kernels.sampling.plan import plan
from ninfer.kernels.sampling.torch_cpu import Distribution, distribution, draw

__all__ = [
    "IMPLEMENTATIONS",
    "Distribution",
    "Purpose",
    "SampleFault",
    "SamplingBatch",
    "SamplingRow",
    "TokenCounts",
    "allow_only",
    "distribution",
    "draw",
    "mask_words",
    "sample",
    "uniform",
]

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "sample": MappingProxyType(
            compiled_routes(compiled_cpu.sample) | {Route.CPU_TORCH: torch_cpu.sample, Route.CUDA: cuda.sample}
        )
    }
)


def sample(logits: torch.Tensor, params: SamplingBatch, out_ids: torch.Tensor) -> None:
    """Choose one token per row of `logits` into `out_ids`; see the module's contract.

    Raises:
        SampleFault: naming every row whose every token is masked or whose logits hold NaN.
        ValueError: a shape or dtype, or an id outside the vocabulary.
    """
    batch, vocab = check_matrix("sample", "logits", logits, torch.float32)
    check("sample", "out_ids", out_ids, (batch,), torch.int64)
    if len(params.rows) != batch:
        raise ValueError(f"sample: params must have one row per row of logits ({batch}), got {len(params.rows)}")
    words = mask_words(vocab)
    for row in params.rows:
        if row.mask is not None and len(row.mask) != words:
            raise ValueError(f"sample: mask must have {words} words, got {len(row.mask)}")
    route = plan(problem(logits, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["sample"][route](logits, params, out_ids)
