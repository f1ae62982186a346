"""Model units: one forward pass over the next tokens of some sequences, and the choice of their next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from ninfer.kernels import log_softmax_gather, sample, top_logprobs
from ninfer.kernels.arena import Arena
from ninfer.kernels.sampling import SamplingBatch
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots
from ninfer.models.qwen3_5.batch import Batch
from ninfer.models.qwen3_5.state import ModelState
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.core.program import PendingRow, SequenceHandle, UnitFault
from ninfer.runtime.program.pages import AddressSpace
from ninfer.runtime.program.sequence import Sequence
from ninfer.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens that one sequence consumes in a unit, from its frontier on, and the image slots read and written."""

    space: AddressSpace
    tokens: tuple[int, ...]
    source: int
    target: int

    @property
    def end(self) -> int:
        """The sequence's frontier after the unit."""
        return self.space.frontier + len(self.tokens)


@dataclass(frozen=True, slots=True)
class ProvisionalRow:
    """What committing a pending row would do: the span it consumed and the tokens it chose."""

    sequence: Sequence
    span: Span
    row: PendingRow


@dataclass(frozen=True, slots=True)
class PendingUnit:
    """A unit's provisional outcome. Implements the PendingBatch protocol."""

    provisional: tuple[ProvisionalRow, ...]

    @property
    def rows(self) -> tuple[PendingRow, ...]:
        return tuple(p.row for p in self.provisional)


class Executor:
    """Runs units on the model. Owns no state of any sequence."""

    def __init__(self, model: TextModel, state: ModelState, mask: torch.Tensor) -> None:
        """`mask` (a bitset over the vocabulary) allows the tokens that may ever be chosen."""
        self._model = model
        self._state = state
        self._mask = mask
        self._arena = Arena()

    def consume(self, span: Span) -> None:
        """Prefill: advance the span's state, choose nothing."""
        with self._arena.scope():
            self._forward((span,))

    def choose(self, sequences: Seq[Sequence], spans: Seq[Span]) -> tuple[PendingRow, ...]:
        """Advance the spans and choose one next token for each sequence."""
        with self._arena.scope():
            hidden = self._forward(spans)
            last = torch.tensor([offset - 1 for offset in _offsets(spans)[1:]])
            rows = torch.index_select(hidden, 0, last, out=self._arena.take(len(spans), hidden.shape[1]))
            logits = self._arena.take(len(spans), self._model.vocab_size)
            self._model.logits(rows, self._arena, logits)
            tokens = self._sample(logits, sequences, spans)
            return tuple(
                PendingRow(sequence.handle, (token,), self._logprobs(logits[i : i + 1], token, sequence))
                for i, (sequence, token) in enumerate(zip(sequences, tokens, strict=True))
            )

    def _forward(self, spans: Seq[Span]) -> torch.Tensor:
        for span in spans:
            span.space.grow(span.end)
        batch = build_batch(spans)
        hidden = self._arena.take(batch.segments.total, self._model.hidden_size)
        self._model.forward(batch, self._state, self._arena, hidden)
        return hidden

    def _sample(self, logits: torch.Tensor, sequences: Seq[Sequence], spans: Seq[Span]) -> list[int]:
        """Row by row, so that a row without an answer names its own sequence and no other."""
        out = torch.empty(1, dtype=torch.int64)
        tokens, faults = [], []
        for i, (sequence, span) in enumerate(zip(sequences, spans, strict=True)):
            params = SamplingBatch((sequence.sampling_row(span.end, self._mask),))
            try:
                sample(logits[i : i + 1], params, out)
            except ValueError as error:
                faults.append((sequence.handle, error))
            tokens.append(int(out[0]))
        if faults:
            raise _fault(faults)
        return tokens

    def _logprobs(self, logits: torch.Tensor, token: int, sequence: Sequence) -> tuple[TokenLogprob, ...]:
        count = sequence.demand.top_logprobs
        if count is None:
            return ()
        value = torch.empty(1)
        log_softmax_gather(logits, torch.tensor([token]), value)
        ids, values = torch.empty(1, count, dtype=torch.int64), torch.empty(1, count)
        if count:
            top_logprobs(logits, count, ids, values)
        top = tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True))
        return (TokenLogprob(token, float(value[0]), top),)


def build_batch(spans: Seq[Span]) -> Batch:
    """The model's view of some spans. Their address spaces have grown to each span's end."""
    places = [(span.space, p) for span in spans for p in range(span.space.frontier, span.end)]
    positions = torch.tensor([position for _, position in places], dtype=torch.int32)
    return Batch(
        token_ids=torch.tensor([token for span in spans for token in span.tokens]),
        positions=positions.expand(3, -1).contiguous(),
        segments=Segments(
            counts=tuple(len(span.tokens) for span in spans), starts=tuple(span.space.frontier for span in spans)
        ),
        tables=_tables(spans),
        slots=torch.tensor([space.slot(position) for space, position in places]),
        states=StateSlots(tuple(span.source for span in spans), tuple(span.target for span in spans)),
    )


def _tables(spans: Seq[Span]) -> torch.Tensor:
    rows = [span.space.table() for span in spans]
    width = max(len(row) for row in rows)
    return torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int32)


def _offsets(spans: Seq[Span]) -> list[int]:
    offsets = [0]
    for span in spans:
        offsets.append(offsets[-1] + len(span.tokens))
    return offsets


def _fault(faults: list[tuple[SequenceHandle, ValueError]]) -> UnitFault:
    return UnitFault(f"no token can be chosen: {faults[0][1]}", tuple(handle for handle, _ in faults))
