"""The physical side of scoring: temporary pages and images for one window at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ninfer.kernels import log_softmax_gather
from ninfer.kernels.arena import Arena
from ninfer.kernels.placement import HOST, Placement
from ninfer.models.qwen3_5.state import ModelState
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.program.pages import AddressSpace, PageStore
from ninfer.runtime.program.sequence import ZERO_IMAGE
from ninfer.runtime.program.spans import Span, build_batch

IMAGES = 2
"""A chunk reads one image and writes the other."""

HEAD_ROWS = 32
"""Rows of logits that exist at once."""


class WindowScorer:
    """Implements `runtime.scoring.ScoringProgram`."""

    def __init__(
        self, model: TextModel, state: ModelState, pages: PageStore, chunk: int, placement: Placement = HOST
    ) -> None:
        """`state` has room for one window in `pages` and two images; `chunk` tokens are consumed at a time."""
        self._model = model
        self._state = state
        self._pages = pages
        self._chunk = chunk
        self._placement = placement
        self._arena = Arena(placement)

    def window_logprobs(self, tokens: Sequence[int], first_target: int) -> list[float]:
        space = AddressSpace.reserve(self._pages, len(tokens))
        try:
            return self._logprobs(tuple(tokens), first_target, space)
        finally:
            space.release()

    def _logprobs(self, tokens: tuple[int, ...], first_target: int, space: AddressSpace) -> list[float]:
        """Row p of the hidden states scores token p + 1, so rows before `first_target - 1` need no head."""
        logprobs: list[float] = []
        source, target = ZERO_IMAGE, 0
        for begin in range(0, len(tokens) - 1, self._chunk):
            inputs = tokens[begin : min(begin + self._chunk, len(tokens) - 1)]
            span = Span(space, inputs, source, target)
            skip = max(first_target - 1 - begin, 0)
            logprobs.extend(self._chunk_logprobs(span, tokens[begin + 1 : begin + 1 + len(inputs)], skip))
            space.advance(span.end)
            source, target = target, 1 - target
        return logprobs

    def _chunk_logprobs(self, span: Span, targets: tuple[int, ...], skip: int) -> list[float]:
        with self._arena.scope():
            span.space.grow(span.end)
            hidden = self._arena.take(len(span.tokens), self._model.hidden_size)
            self._model.forward(build_batch((span,), self._placement), self._state, self._arena, hidden)
            wanted = self._placement.upload(torch.tensor(targets))
            rows = range(skip, len(targets), HEAD_ROWS)
            return [value for row in rows for value in self._gather(hidden, wanted, row)]

    def _gather(self, hidden: torch.Tensor, targets: torch.Tensor, row: int) -> list[float]:
        with self._arena.scope():
            block, ids = hidden[row : row + HEAD_ROWS], targets[row : row + HEAD_ROWS]
            logits, values = self._arena.take(len(ids), self._model.vocab_size), self._arena.take(len(ids))
            self._model.logits(block, self._arena, logits)
            log_softmax_gather(logits, ids, values)
            return values.tolist()
