"""sample with torch and NumPy, row by row.

Work is fp64 from the logits on. A full sort of the vocabulary is avoided where something bounds the candidates
first: top-k takes them with `topk`; min-p, top-p and the drawn number itself give a weight below which no token
can be chosen. The rest is the head of the same order with the same running sums, so the draw is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ninfer.kernels.bitset import allowed
from ninfer.kernels.philox import uniform
from ninfer.kernels.sampling.params import SampleFault, SamplingBatch, SamplingRow

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that may be drawn: by falling probability, ties by rising id. Probabilities sum to 1."""

    ids: I64
    probabilities: F64


def sample(logits: torch.Tensor, params: SamplingBatch, out_ids: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    chosen, faults = [], []
    for index, (row, position) in enumerate(zip(params.rows, params.positions, strict=True)):
        try:
            chosen.append(_choose(logits[index], row, position))
        except SampleFault:
            faults.append(index)
        except ValueError as error:
            raise ValueError(f"sample: row {index}: {error}") from None
    if faults:
        raise SampleFault(tuple(faults))
    out_ids.copy_(torch.tensor(chosen, dtype=torch.int64))


def distribution(logits: torch.Tensor, row: SamplingRow) -> Distribution:
    """The processed distribution of logits fp32 [V] under `row`; temperature <= 0 gives a single token.

    Raises:
        SampleFault: every token is masked, or a logit is NaN or infinite.
        ValueError: a prompt or output id outside the vocabulary.
    """
    return _prefix(_penalised(logits, row), row, reach=1.0)


def draw(source: Distribution, u: float) -> int:
    """The first token whose running sum of probabilities exceeds u in (0, 1)."""
    index = int(np.searchsorted(np.cumsum(source.probabilities), u, side="right"))
    return int(source.ids[min(index, len(source.ids) - 1)])


def _choose(logits: torch.Tensor, row: SamplingRow, position: int) -> int:
    scores = _penalised(logits, row)
    if row.temperature <= 0:
        return _greatest(scores)
    u = uniform(row.seed, position, row.purpose)
    return draw(_prefix(scores, row, reach=u), u)


def _penalised(logits: torch.Tensor, row: SamplingRow) -> F64:
    """Steps 1 and 2 of the contract: fp64 scores [V] after mask and penalties."""
    scores: F64 = logits.double().numpy()
    if row.mask is not None:
        scores[~allowed(row.mask, logits.numel()).numpy()] = -np.inf
    prompt = np.empty(0, np.int64) if row.prompt_ids is None else row.prompt_ids.numpy()
    produced = np.array([] if row.outputs is None else row.outputs.items(), np.int64).reshape(-1, 2)
    seen = np.union1d(prompt, produced[:, 0])
    if len(seen) and not 0 <= seen[0] <= seen[-1] < len(scores):
        raise ValueError(f"prompt_ids and outputs must lie in [0, {len(scores)})")
    values, factor = scores[seen], row.repetition_penalty
    with np.errstate(over="ignore"):  # a score out of range is a fault, found later
        scores[seen] = np.where(values > 0, values / factor, values * factor)
        scores[produced[:, 0]] -= row.presence_penalty + row.frequency_penalty * produced[:, 1]
    return scores


def _greatest(scores: F64) -> int:
    best = int(scores.argmax())  # the first of equal maxima; a NaN counts as the greatest
    if not np.isfinite(scores[best]):
        raise SampleFault((0,))
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


def _prefix(scores: F64, row: SamplingRow, reach: float) -> Distribution:
    """Steps 3 to 7 of the contract; the least probable tokens may be missing past the share `reach`.

    Of n tokens, those lighter than half of (1 - share) * mass / n weigh together less than (1 - share) * mass, so
    the most probable prefix that holds the share lies among the others, and only they are sorted.
    """
    best = _greatest(scores)
    if row.temperature <= 0:
        return Distribution(np.array([best]), np.ones(1))
    ids = _top_k(scores, row.top_k)
    with np.errstate(over="ignore"):  # a tiny temperature leaves no weight to any other token
        weights = np.exp((scores[ids] - scores[best]) / row.temperature)
    total, above = weights.sum(), weights >= row.min_p
    ids, weights = ids[above], weights[above]
    mass = weights.sum()
    lost = (1.0 - row.top_p) * total if row.top_p < 1 else (1.0 - reach) * mass
    candidates = np.flatnonzero(weights >= 0.5 * lost / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    kept = weights[order]
    if row.top_p < 1:
        running = np.cumsum(kept)
        kept = kept[: int(np.searchsorted(running, row.top_p * total)) + 1]
        mass = running[len(kept) - 1]
    return Distribution(ids[order[: len(kept)]], kept / mass)
