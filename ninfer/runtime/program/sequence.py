"""One active sequence's physical and sampling state inside Program."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import torch

from ninfer.kernels.sampling import SamplingRow, TokenCounts
from ninfer.runtime.core.program import SequenceDemand, SequenceHandle
from ninfer.runtime.program.checkpoints import Identity
from ninfer.runtime.program.pages import AddressSpace

ZERO_IMAGE = -1
"""The state of a sequence that has consumed nothing: no slot holds it."""


@dataclass(slots=True, eq=False)
class Sequence:
    """What Program knows of one active request.

    `image` is the slot of the committed state at `space.frontier`. Once the prompt is consumed, `anchor` is the last
    token chosen: part of the answer, not yet consumed by the model. `history` lists prompt and answer, anchor included;
    `outputs` counts the answer's tokens where a penalty depends on them.
    """

    handle: SequenceHandle
    demand: SequenceDemand
    space: AddressSpace
    image: int = ZERO_IMAGE
    anchor: int | None = None
    history: array[int] = field(init=False)
    outputs: TokenCounts | None = field(init=False)
    _row: SamplingRow | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        s = self.demand.sampling
        penalised = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0
        self.outputs = TokenCounts() if penalised else None
        self.history = array("i", self.prompt)

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.demand.prompt.token_ids

    def sampling_row(self, mask: torch.Tensor) -> SamplingRow:
        """How the next token is to be chosen: one object for all rounds, which sees `mask` and `outputs` change."""
        if self._row is None or self._row.mask is not mask:
            self._row = self._sampling_row(mask)
        return self._row

    def _sampling_row(self, mask: torch.Tensor) -> SamplingRow:
        s = self.demand.sampling
        return SamplingRow(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            repetition_penalty=s.repetition_penalty,
            seed=s.seed,
            prompt_ids=self._prompt_ids(mask.device) if s.repetition_penalty != 1.0 else None,
            outputs=self.outputs,
            mask=mask,
        )

    def _prompt_ids(self, device: torch.device) -> torch.Tensor:
        return torch.tensor(sorted(set(self.prompt)), device=device)

    def identity(self) -> Identity:
        """What shaped the committed state."""
        return Identity(self.history[: self.space.frontier], self.demand.prompt.identity)

    def append(self, tokens: Tokens[int]) -> None:
        """Make chosen or forced tokens part of the answer; the last one becomes the anchor."""
        if self.outputs is not None:
            self.outputs.add(tokens)
        self.history.extend(tokens)
        self.anchor = tokens[-1]


def tokens_consumed(demand: SequenceDemand) -> int:
    """Tokens whose keys and values a request can ever need: its last output token is never consumed."""
    return len(demand.prompt.token_ids) + demand.max_new_tokens - 1
