"""sample with torch and NumPy, row by row.

Work is fp64 from the logits on. A full sort of the vocabulary is avoided where something bounds the candidates
first: top-k takes them with `topk`, min-p and top-p with a threshold below which no token can be kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ninfer.kernels.bitset import allowed
from ninfer.kernels.philox import uniform
from ninfer.kernels.sampling.params import SamplingBatch, SamplingRow

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that may be drawn: by falling probability, ties by rising id. Probabilities sum to 1."""

    ids: I64
    probabilities: F64


def sample(logits: torch.Tensor, params: SamplingBatch, out_ids: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    chosen = []
    for index, row in enumerate(params.rows):
        try:
            chosen.append(_choose(logits[index], row))
        except ValueError as error:
            raise ValueError(f"sample: row {index}: {error}") from None
    out_ids.copy_(torch.tensor(chosen, dtype=torch.int64))


def distribution(logits: torch.Tensor, row: SamplingRow) -> Distribution:
    """The processed distribution of logits fp32 [V] under `row`; temperature <= 0 gives a single token.

    Raises:
        ValueError: every token is masked, or a logit is NaN.
    """
    scores = _penalised(logits, row)
    if row.temperature <= 0:
        return Distribution(np.array([_greatest(scores)]), np.ones(1))
    ids = _top_k(scores, row.top_k)
    weights = np.exp((scores[ids] - scores[_greatest(scores)]) / row.temperature)
    return _nucleus(ids, weights, row.top_p, row.min_p)


def draw(source: Distribution, u: float) -> int:
    """The first token whose running sum of probabilities exceeds u in (0, 1)."""
    running = np.cumsum(source.probabilities)
    index = int(np.searchsorted(running, u * running[-1], side="right"))
    return int(source.ids[min(index, len(source.ids) - 1)])


def _choose(logits: torch.Tensor, row: SamplingRow) -> int:
    if row.temperature <= 0:
        return _greatest(_penalised(logits, row))
    return draw(distribution(logits, row), uniform(row.seed, row.position, row.purpose))


def _penalised(logits: torch.Tensor, row: SamplingRow) -> F64:
    """Steps 1 and 2 of the contract: fp64 scores [V] after mask and penalties."""
    scores = logits.double()
    if row.mask is not None:
        scores.masked_fill_(~allowed(row.mask, logits.numel()), -torch.inf)
    histories = [ids for ids in (row.prompt_ids, row.output_ids) if ids is not None]
    if row.repetition_penalty != 1 and histories:
        seen = torch.cat(histories)
        values, factor = scores[seen], row.repetition_penalty
        scores[seen] = torch.where(values > 0, values / factor, values * factor)
    if row.output_ids is not None and row.output_counts is not None:
        scores[row.output_ids] -= row.presence_penalty + row.frequency_penalty * row.output_counts.double()
    result: F64 = scores.numpy()
    return result


def _greatest(scores: F64) -> int:
    best = int(scores.argmax())  # the first of equal maxima; a NaN counts as the greatest
    if not scores[best] > -np.inf:
        raise ValueError(f"no token can be chosen: the best allowed logit is {scores[best]}")
    return best


def _top_k(scores: F64, top_k: int) -> I64:
    """Ids, rising, of the top_k greatest scores (ties: lower id; 0 or more than there are: all above -inf)."""
    if not 0 < top_k < len(scores):
        return np.flatnonzero(scores > -np.inf)
    threshold = torch.from_numpy(scores).topk(top_k).values[-1].item()
    above = np.flatnonzero(scores > threshold)
    if threshold == -np.inf:
        return above
    level = np.flatnonzero(scores == threshold)[: top_k - len(above)]
    return np.sort(np.concatenate((above, level)))


def _nucleus(ids: I64, weights: F64, top_p: float, min_p: float) -> Distribution:
    """Steps 5 to 7 of the contract, from rising ids and weights whose maximum is 1.

    Tokens lighter than half of (1 - top_p) * total / count weigh together less than what top-p leaves out, so the
    prefix it keeps lies among the others, and only they are sorted.
    """
    total = weights.sum()
    floor = max(min_p, 0.5 * (1.0 - top_p) * total / len(weights))
    candidates = np.flatnonzero(weights >= floor)
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    kept = weights[order]
    if top_p < 1:
        kept = kept[: int(np.searchsorted(np.cumsum(kept), top_p * total)) + 1]
    return Distribution(ids[order[: len(kept)]], kept / np.cumsum(kept)[-1])
