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
Shapes: logits [B, V]; params one `SamplingRow` per row; out_ids [B].
Dtypes: logits fp32; out_ids int64; ids and counts int64; masks int32 (`mask_words`, `allow_only`).
Domain: logits finite or -inf; every row has an allowed logit above -inf.
Effects: writes out_ids. A row without an answer raises ValueError before anything is written.
Workspace: the torch route allocates a few fp64 vectors of V per row, one row at a time.
Numeric criterion: probabilities within 1e-11, relatively, of the oracle, the drawn id equal to the oracle's. A row's
    token never depends on the other rows: rows are computed one by one, from their own data only.

`distribution` gives step 6's p to callers that need it whole, for example to verify drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.bitset import allow_only, mask_words
from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.philox import Purpose, uniform
from ninfer.kernels.routes import Problem, Route, device_kind
from ninfer.kernels.sampling import torch_cpu
from ninfer.kernels.sampling.params import SamplingBatch, SamplingRow
from ninfer.kernels.sampling.plan import plan
from ninfer.kernels.sampling.torch_cpu import Distribution, distribution, draw

__all__ = [
    "IMPLEMENTATIONS",
    "Distribution",
    "Purpose",
    "SamplingBatch",
    "SamplingRow",
    "allow_only",
    "distribution",
    "draw",
    "mask_words",
    "sample",
    "uniform",
]

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {"sample": MappingProxyType({Route.CPU_TORCH: torch_cpu.sample})}
)


def sample(logits: torch.Tensor, params: SamplingBatch, out_ids: torch.Tensor) -> None:
    """Choose one token per row of `logits` into `out_ids`; see the module's contract.

    Raises:
        ValueError: a shape or dtype, an id outside the vocabulary, or a row whose every token is masked or
            whose logits hold NaN.
    """
    batch, vocab = check_matrix("sample", "logits", logits, torch.float32)
    check("sample", "out_ids", out_ids, (batch,), torch.int64)
    if len(params.rows) != batch:
        raise ValueError(f"sample: params must have one row per row of logits ({batch}), got {len(params.rows)}")
    for row in params.rows:
        _check_row(row, vocab)
    route = plan(Problem(device_kind(logits)))[0]
    IMPLEMENTATIONS["sample"][route](logits, params, out_ids)


def _check_row(row: SamplingRow, vocab: int) -> None:
    if row.mask is not None:
        check("sample", "mask", row.mask, (mask_words(vocab),), torch.int32)
    for name, ids in (("prompt_ids", row.prompt_ids), ("output_ids", row.output_ids)):
        if ids is None:
            continue
        check("sample", name, ids, (ids.numel(),), torch.int64)
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
            raise ValueError(f"sample: {name} must lie in [0, {vocab})")
    if row.output_ids is not None and row.output_counts is not None:
        check("sample", "output_counts", row.output_counts, (row.output_ids.numel(),), torch.int64)
