"""Decode rounds as recorded tapes: one per batch size, run with one call.

Every kernel of a round, from embedding to logits, is recorded once with the addresses of this round's own tensors. What
differs from round to round (tokens, positions, pages, image slots) is data in those tensors, written before each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ninfer.kernels.arena import Arena
from ninfer.kernels.native import Tape, record
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import ZERO, StateSlots
from ninfer.models.qwen3_5.batch import Batch
from ninfer.models.qwen3_5.state import ModelState
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.program.pages import AddressSpace
from ninfer.runtime.program.spans import Span


class DecodeRound:
    """One token of each of B rows. Owns the memory that its tape reads and writes."""

    def __init__(self, model: TextModel, state: ModelState, rows: int, pages: int) -> None:
        """Record a round of `rows` rows whose sequences have at most `pages` pages."""
        self._batch = _empty_batch(rows, pages)
        self._tables = _PageTables(self._batch.tables)
        self._token_ids = self._batch.token_ids.numpy()
        self._positions = self._batch.positions.numpy()
        self._starts = self._batch.segments.data.numpy()[2]
        self._slots = self._batch.slots.numpy()
        self._states = self._batch.states.data.numpy()
        self._hidden = torch.empty(rows, model.hidden_size)
        self._logits = torch.empty(rows, model.vocab_size)
        self._arena = Arena()
        self._record(model, state)  # only to learn how much memory a round needs
        self._tape = self._record(model, state)

    def run(self, spans: Sequence[Span]) -> torch.Tensor:
        """Advance each span by its one token; f32[B, V], valid until the next run. The address spaces have grown."""
        for row, span in enumerate(spans):
            self._tables.write(row, span.space)
        frontiers = [span.space.frontier for span in spans]
        self._token_ids[:] = [span.tokens[0] for span in spans]
        self._positions[:] = frontiers
        self._starts[:] = frontiers
        self._slots[:] = [span.space.slot(span.space.frontier) for span in spans]
        self._states[0] = [span.source for span in spans]
        self._states[1] = [span.target for span in spans]
        self._tape.run()
        return self._logits

    def _record(self, model: TextModel, state: ModelState) -> Tape:
        with record() as tape, self._arena.scope():
            model.forward(self._batch, state, self._arena, self._hidden)
            model.logits(self._hidden, self._arena, self._logits)
        return tape


class _PageTables:
    """The rows of a table tensor. A row is written anew only for another sequence; else its new pages are appended."""

    def __init__(self, tables: torch.Tensor) -> None:
        self._tables = tables.numpy()
        self._spaces: list[AddressSpace | None] = [None] * len(tables)
        self._written = [0] * len(tables)

    def write(self, row: int, space: AddressSpace) -> None:
        if self._spaces[row] is not space:
            self._spaces[row], self._written[row] = space, 0
        begin, end = self._written[row], len(space.pages)
        if begin < end:
            self._tables[row, begin:end] = space.table(begin)
            self._written[row] = end


def _empty_batch(rows: int, pages: int) -> Batch:
    """Tensors of the right shapes, with contents that every check accepts."""
    return Batch(
        token_ids=torch.zeros(rows, dtype=torch.int64),
        positions=torch.zeros(3, rows, dtype=torch.int32),
        segments=Segments(counts=(1,) * rows, starts=(0,) * rows),
        tables=torch.zeros(rows, pages, dtype=torch.int32),
        slots=torch.from_numpy(np.arange(rows, dtype=np.int64)),
        states=StateSlots(sources=(ZERO,) * rows, targets=tuple(range(rows))),
    )
