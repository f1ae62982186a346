"""Model units: one forward pass over the next tokens of some sequences, and the choice of their next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate

import torch

from ninfer.kernels import log_softmax_gather, sample, top_logprobs
from ninfer.kernels.arena import Arena
from ninfer.kernels.sampling import SamplingBatch
from ninfer.models.qwen3_5.state import ModelState
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.core.program import PendingRow, SequenceHandle, UnitFault
from ninfer.runtime.program.rounds import DecodeRound
from ninfer.runtime.program.sequence import Sequence
from ninfer.runtime.program.spans import Span, build_batch
from ninfer.types import TokenLogprob


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

    def __init__(self, model: TextModel, state: ModelState, mask: torch.Tensor, pages: int, recorded: bool) -> None:
        """Run `model` on `state`.

        Args:
            mask: a bitset over the vocabulary that allows the tokens that may ever be chosen.
            pages: the most pages that a sequence can have.
            recorded: run decode rounds from tapes; every op must have its compiled kernels.
        """
        self._model = model
        self._state = state
        self._mask = mask
        self._pages = pages
        self._recorded = recorded
        self._rounds: dict[int, DecodeRound] = {}
        self._arena = Arena()

    def consume(self, span: Span) -> None:
        """Prefill: advance the span's state, choose nothing."""
        _grow((span,))
        with self._arena.scope():
            self._forward((span,))

    def choose(self, sequences: Seq[Sequence], spans: Seq[Span]) -> tuple[PendingRow, ...]:
        """Advance the spans and choose one next token for each sequence."""
        _grow(spans)
        with self._arena.scope():
            logits = self._logits(spans)
            tokens = self._sample(logits, sequences, spans)
            return tuple(
                PendingRow(sequence.handle, (token,), self._logprobs(logits[i : i + 1], token, sequence))
                for i, (sequence, token) in enumerate(zip(sequences, tokens, strict=True))
            )

    def _logits(self, spans: Seq[Span]) -> torch.Tensor:
        """Advance the spans: f32[B, V] after the last token of each."""
        if self._recorded and all(len(span.tokens) == 1 for span in spans):
            return self._round(len(spans)).run(spans)
        hidden = self._forward(spans)
        last = torch.tensor([*accumulate(len(span.tokens) for span in spans)]).sub_(1)
        rows = torch.index_select(hidden, 0, last, out=self._arena.take(len(spans), hidden.shape[1]))
        logits = self._arena.take(len(spans), self._model.vocab_size)
        self._model.logits(rows, self._arena, logits)
        return logits

    def _round(self, rows: int) -> DecodeRound:
        if rows not in self._rounds:
            self._rounds[rows] = DecodeRound(self._model, self._state, rows, self._pages)
        return self._rounds[rows]

    def _forward(self, spans: Seq[Span]) -> torch.Tensor:
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


def _grow(spans: Seq[Span]) -> None:
    for span in spans:
        span.space.grow(span.end)


def _fault(faults: list[tuple[SequenceHandle, ValueError]]) -> UnitFault:
    return UnitFault(f"no token can be chosen: {faults[0][1]}", tuple(handle for handle, _ in faults))
