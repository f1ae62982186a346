"""Model units: one forward pass over the next tokens of some sequences, and the choice of their next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch

from ninfer.kernels import log_softmax_gather, sample, top_logprobs
from ninfer.kernels.arena import Arena
from ninfer.kernels.placement import HOST, Placement
from ninfer.kernels.sampling import SampleFault, SamplingBatch
from ninfer.models.qwen3_5.state import ModelState
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.core.program import PendingRow, UnitFault
from ninfer.runtime.program.rounds import DecodeRound, Recorder
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

    def __init__(
        self,
        model: TextModel,
        state: ModelState,
        mask: torch.Tensor,
        pages: int,
        recorder: Recorder | None,
        placement: Placement = HOST,
        workspace: int = 0,
    ) -> None:
        """Run `model` on `state`.

        Args:
            mask: a bitset over the vocabulary that allows the tokens that may ever be chosen.
            pages: the most pages that a sequence can have.
            recorder: how decode rounds are recorded; None runs them op by op, like prefills.
            placement: where model, state and mask live.
            workspace: bytes to take for passes at once; more is taken when a pass needs it.
        """
        self._model = model
        self._state = state
        self._mask = mask
        self._pages = pages
        self._recorder = recorder
        self._placement = placement
        self._rounds: dict[int, DecodeRound] = {}
        self._arena = Arena(placement, workspace)

    def synchronise(self) -> None:
        """Wait until everything that units and transfers asked for is done.

        Raises:
            RuntimeError: the device failed; no state on it can be trusted any more.
        """
        self._placement.synchronise()

    def consume(self, span: Span) -> None:
        """Prefill: advance the span's state, choose nothing."""
        _grow((span,))
        with self._arena.scope():
            self._forward((span,), ())

    def choose(self, sequences: Seq[Sequence], spans: Seq[Span]) -> tuple[PendingRow, ...]:
        """Advance the spans and choose one next token for each sequence."""
        _grow(spans)
        with self._arena.scope():
            logits = self._logits(spans)
            tokens = self._sample(logits, sequences, spans)
            logprobs = _logprobs(logits, tokens, [sequence.demand.top_logprobs for sequence in sequences])
            return tuple(
                PendingRow(sequence.handle, (token,), found)
                for sequence, token, found in zip(sequences, tokens, logprobs, strict=True)
            )

    def _logits(self, spans: Seq[Span]) -> torch.Tensor:
        """Advance the spans: f32[B, V] after the last token of each."""
        if self._recorder is not None and all(len(span.tokens) == 1 for span in spans):
            return self._round(len(spans), self._recorder).run(spans)
        rows = self._forward(spans, [end - 1 for end in accumulate(len(span.tokens) for span in spans)])
        logits = self._arena.take(len(spans), self._model.vocab_size)
        self._model.logits(rows, self._arena, logits)
        return logits

    def _round(self, rows: int, recorder: Recorder) -> DecodeRound:
        if rows not in self._rounds:
            made = DecodeRound(self._model, self._state, rows, self._pages, recorder, self._placement)
            self._rounds[rows] = made
        return self._rounds[rows]

    def _forward(self, spans: Seq[Span], wanted: Seq[int]) -> torch.Tensor:
        """Advance the spans: f32[R, H], the last block's output for the wanted ones of their tokens."""
        hidden = self._arena.take(len(wanted), self._model.hidden_size)
        rows = self._placement.upload(torch.tensor(wanted, dtype=torch.int64))
        batch = build_batch(spans, self._placement)
        self._model.forward_rows(batch, self._state, self._arena, rows, hidden)
        return hidden

    def _sample(self, logits: torch.Tensor, sequences: Seq[Sequence], spans: Seq[Span]) -> list[int]:
        rows = tuple(sequence.sampling_row(self._mask) for sequence in sequences)
        out = self._placement.empty(len(rows), dtype=torch.int64)
        try:
            sample(logits, SamplingBatch(rows, tuple(span.end for span in spans)), out)
        except SampleFault as fault:
            handles = tuple(sequences[row].handle for row in fault.rows)
            raise UnitFault(f"no token can be chosen: {fault}", handles) from None
        return out.tolist()


def _logprobs(logits: torch.Tensor, tokens: Seq[int], counts: Seq[int | None]) -> list[tuple[TokenLogprob, ...]]:
    """Of each row's token and its `counts` likeliest; nothing where that is None. Neighbouring rows go together."""
    found: list[tuple[TokenLogprob, ...]] = []
    for absent, group in groupby(counts, lambda count: count is None):
        rows = slice(len(found), len(found) + len(list(group)))
        wanted = [count for count in counts[rows] if count is not None]
        found.extend([()] * len(counts[rows]) if absent else _token_logprobs(logits[rows], tokens[rows], wanted))
    return found


def _token_logprobs(logits: torch.Tensor, tokens: Seq[int], counts: Seq[int]) -> list[tuple[TokenLogprob, ...]]:
    rows, most, device = len(tokens), max(counts), logits.device
    values, top_ids = torch.empty(rows, device=device), torch.empty(rows, most, dtype=torch.int64, device=device)
    top_values = torch.empty(rows, most, device=device)
    log_softmax_gather(logits, torch.tensor(tokens, device=device), values)
    if most:
        top_logprobs(logits, most, top_ids, top_values)
    tops = zip(top_ids.tolist(), top_values.tolist(), counts, strict=True)
    ranked = [tuple(zip(ids[:count], likely[:count], strict=True)) for ids, likely, count in tops]
    return [(TokenLogprob(*row),) for row in zip(tokens, values.tolist(), ranked, strict=True)]


def _grow(spans: Seq[Span]) -> None:
    for span in spans:
        span.space.grow(span.end)
