"""How one row of a batch is to be sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ninfer.kernels.philox import Purpose


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """Sampling parameters and history of one row; the defaults sample the plain softmax.

    Attributes:
        temperature: divides the logits; 0 or less means the greatest logit, with no random draw.
        top_k: keep the k most probable tokens (ties: lower id); 0 keeps all.
        top_p: keep the shortest most-probable prefix that holds this share of the probability; (0, 1].
        min_p: keep tokens at least this fraction as probable as the most probable one; [0, 1].
        presence_penalty: subtracted once from the logit of every token of `output_ids`.
        frequency_penalty: subtracted from it once per occurrence.
        repetition_penalty: > 0; divides positive and multiplies other logits of prompt and output tokens.
        seed: u64 key of the random stream.
        position: counter of the draw, normally the absolute position of the token to be chosen.
        purpose: which of the streams at that position to use.
        prompt_ids: int64 [n], tokens of the prompt, repeats allowed; None for none.
        output_ids: int64 [m], distinct tokens produced so far; None for none.
        output_counts: int64 [m], occurrences (> 0) of each of `output_ids`.
        mask: int32 [ceil(V / 32)] grammar mask, or None when every token is allowed.

    Raises:
        ValueError: naming the parameter that is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    position: int = 0
    purpose: Purpose = Purpose.TOKEN
    prompt_ids: torch.Tensor | None = None
    output_ids: torch.Tensor | None = None
    output_counts: torch.Tensor | None = None
    mask: torch.Tensor | None = None

    def __post_init__(self) -> None:
        floats = ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty")
        for name in floats:
            _require(math.isfinite(getattr(self, name)), name, "finite", getattr(self, name))
        _require(self.top_k >= 0, "top_k", ">= 0 (0 keeps all)", self.top_k)
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        _require(0 <= self.min_p <= 1, "min_p", "in [0, 1]", self.min_p)
        _require(self.repetition_penalty > 0, "repetition_penalty", "> 0", self.repetition_penalty)
        _require(0 <= self.seed < 1 << 64, "seed", "in [0, 2**64)", self.seed)
        _require(0 <= self.position < 1 << 64, "position", "in [0, 2**64)", self.position)
        paired = (self.output_ids is None) == (self.output_counts is None)
        _require(paired, "output_counts", "given exactly when output_ids is", self.output_counts)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """One `SamplingRow` per row of logits."""

    rows: tuple[SamplingRow, ...]


def _require(holds: bool, name: str, range_: str, value: object) -> None:
    if not holds:
        raise ValueError(f"sample: {name} must be {range_}, got {value}")
