"""How one row of a batch is to be sampled."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.philox import Purpose
from ninfer.kernels.sampling.packed import Parameters, TokenCounts


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRow:
    """Sampling parameters and history of one row, made once for many draws; the defaults sample the plain softmax.

    Attributes:
        temperature: divides the logits; 0 or less means the greatest logit, with no random draw.
        top_k: keep the k most probable tokens (ties: lower id); 0 keeps all.
        top_p: keep the shortest most-probable prefix that holds this share of the probability; (0, 1].
        min_p: keep tokens at least this fraction as probable as the most probable one; [0, 1].
        presence_penalty: subtracted once from the logit of every token of `outputs`.
        frequency_penalty: subtracted from it once per occurrence.
        repetition_penalty: > 0; divides positive and multiplies other logits of prompt and output tokens.
        seed: u64 key of the random stream.
        purpose: which of the streams at a position to use.
        prompt_ids: int64 [n], tokens of the prompt, repeats allowed; None for none.
        outputs: the tokens produced so far; None for none. May grow between draws.
        mask: int32 [ceil(V / 32)] grammar mask, or None when every token is allowed. May be rewritten between draws.
        packed: all of this for the compiled kernel; it points into the tensors above.

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
    purpose: Purpose = Purpose.TOKEN
    prompt_ids: torch.Tensor | None = None
    outputs: TokenCounts | None = None
    mask: torch.Tensor | None = None
    packed: Parameters = field(init=False, repr=False)

    def __post_init__(self) -> None:
        floats = ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty")
        for name in floats:
            _require(math.isfinite(getattr(self, name)), name, "finite", getattr(self, name))
        _require(self.top_k >= 0, "top_k", ">= 0 (0 keeps all)", self.top_k)
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        _require(0 <= self.min_p <= 1, "min_p", "in [0, 1]", self.min_p)
        _require(self.repetition_penalty > 0, "repetition_penalty", "> 0", self.repetition_penalty)
        _require(0 <= self.seed < 1 << 64, "seed", "in [0, 2**64)", self.seed)
        if self.prompt_ids is not None:
            check("sample", "prompt_ids", self.prompt_ids, (self.prompt_ids.numel(),), torch.int64)
        if self.mask is not None:
            check("sample", "mask", self.mask, (self.mask.numel(),), torch.int32)
        object.__setattr__(self, "packed", self._pack())

    @property
    def address(self) -> int:
        """Where the compiled kernel finds the parameters, for as long as this object lives."""
        return ctypes.addressof(self.packed)

    def _pack(self) -> Parameters:
        return Parameters(
            temperature=self.temperature,
            top_p=self.top_p,
            min_p=self.min_p,
            presence=self.presence_penalty,
            frequency=self.frequency_penalty,
            repetition=self.repetition_penalty,
            seed=self.seed,
            top_k=min(self.top_k, (1 << 63) - 1),
            prompt_count=0 if self.prompt_ids is None else self.prompt_ids.numel(),
            prompt_ids=None if self.prompt_ids is None else self.prompt_ids.data_ptr(),
            outputs=None if self.outputs is None else self.outputs.address,
            mask=None if self.mask is None else self.mask.data_ptr(),
            purpose=self.purpose,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SamplingBatch:
    """How the rows of logits are to be sampled.

    Attributes:
        rows: one per row of logits.
        positions: the counter of each row's draw, in [0, 2**64), normally the position of the token to be chosen.

    Raises:
        ValueError: unequal numbers of rows and positions, or a position outside its range.
    """

    rows: tuple[SamplingRow, ...]
    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        _require(len(self.positions) == len(self.rows), "positions", f"{len(self.rows)} numbers", self.positions)
        for position in self.positions:
            _require(0 <= position < 1 << 64, "position", "in [0, 2**64)", position)


class SampleFault(ValueError):
    """Rows for which no token can be chosen: all is masked, or a logit is NaN or infinite. No token was written.

    Attributes:
        rows: their indices, rising.
    """

    def __init__(self, rows: tuple[int, ...]) -> None:
        names = ("row " if len(rows) == 1 else "rows ") + ", ".join(map(str, rows))
        super().__init__(f"sample: {names}: every token is masked, or a logit is NaN or infinite")
        self.rows = rows


def _require(holds: bool, name: str, range_: str, value: object) -> None:
    if not holds:
        raise ValueError(f"sample: {name} must be {range_}, got {value}")
