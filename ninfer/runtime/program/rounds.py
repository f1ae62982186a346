"""Decode rounds recorded once per batch size and run again with one call.

Every kernel of a round, from embedding to logits, is recorded with the addresses of this round's own tensors. What
differs from round to round (tokens, positions, pages, image slots) is data in those tensors, sent before each run.

How a round is recorded is the machine's matter: a tape of compiled kernels, a CUDA graph, or, for comparison, nothing
at all but the work done anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch

from ninfer.kernels import native
from ninfer.kernels.arena import Arena
from ninfer.kernels.placement import HOST, Mirror, Placement
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import ZERO, StateSlots
from ninfer.models.qwen3_5.batch import Batch
from ninfer.models.qwen3_5.state import ModelState
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.program.pages import AddressSpace
from ninfer.runtime.program.spans import Span

_ALIGN = 64


class Recording(Protocol):
    """Work that can be done again."""

    def run(self) -> None: ...


Recorder = Callable[[Callable[[], None]], Recording]
"""Does the work, which launches kernels and nothing else, and returns what does it again."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A Recorder that records nothing: every run is the work itself."""

    work: Callable[[], None]

    def run(self) -> None:
        self.work()

    @staticmethod
    def record(work: Callable[[], None]) -> Repeated:
        work()
        return Repeated(work)


def taped(work: Callable[[], None]) -> native.Tape:
    """The Recorder of compiled CPU kernels."""
    with native.record():
        work()  # only to learn how much memory it needs
    with native.record() as tape:
        work()
    tape.run()
    return tape


class DecodeRound:
    """One token of each of B rows. Owns the memory that its recording reads and writes."""

    def __init__(
        self,
        model: TextModel,
        state: ModelState,
        rows: int,
        pages: int,
        recorder: Recorder = taped,
        placement: Placement = HOST,
    ) -> None:
        """A round of `rows` rows whose sequences have at most `pages` pages; recorded when it runs first."""
        self._model = model
        self._state = state
        self._recorder = recorder
        self._recording: Recording | None = None
        self._inputs = RoundInputs(placement, rows, pages)
        self._tables = _PageTables(self._inputs.tables)
        self._hidden = placement.empty(rows, model.hidden_size)
        self._logits = placement.empty(rows, model.vocab_size)
        self._arena = Arena(placement)

    def run(self, spans: Sequence[Span]) -> torch.Tensor:
        """Advance each span by its one token; f32[B, V], valid until the next run. The address spaces have grown."""
        self._write(spans)
        if self._recording is None:
            self._recording = self._recorder(self._launch)
        else:
            self._recording.run()
        return self._logits

    def _write(self, spans: Sequence[Span]) -> None:
        for row, span in enumerate(spans):
            self._tables.write(row, span.space)
        inputs, frontiers = self._inputs, [span.space.frontier for span in spans]
        inputs.token_ids[:] = [span.tokens[0] for span in spans]
        inputs.positions[:] = frontiers
        inputs.starts[:] = frontiers
        inputs.slots[:] = [span.space.slot(span.space.frontier) for span in spans]
        inputs.states[0] = [span.source for span in spans]
        inputs.states[1] = [span.target for span in spans]
        inputs.push()

    def _launch(self) -> None:
        with self._arena.scope():
            self._model.forward(self._inputs.batch, self._state, self._arena, self._hidden)
            self._model.logits(self._hidden, self._arena, self._logits)


class RoundInputs:
    """Everything that differs between rounds of B rows, in one piece of memory: arrays to write, and a Batch to read.

    Attributes:
        token_ids, slots, positions, starts, states, tables: what the host writes, shaped as in `Batch`; `starts` is
            the last row of the segments' data.
        batch: the same at the placement, once pushed. Its tuples are placeholders that every check accepts.
    """

    def __init__(self, placement: Placement, rows: int, pages: int) -> None:
        shapes = ((rows,), (rows,), (3, rows), (3, rows), (2, rows), (rows, pages))
        dtypes = (torch.int64, torch.int64, *[torch.int32] * 4)
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        ends = list(accumulate((-(-size // _ALIGN) * _ALIGN for size in sizes), initial=0))
        self._mirror: Mirror = placement.mirror(ends[-1])

        def fields(memory: torch.Tensor) -> Iterator[torch.Tensor]:
            for begin, size, shape, dtype in zip(ends[:-1], sizes, shapes, dtypes, strict=True):
                yield memory[begin : begin + size].view(dtype).view(shape)

        segments, states = _placeholders(rows)
        host = [field.numpy() for field in fields(self._mirror.host)]
        self.token_ids, self.slots, self.positions, divided, self.states, self.tables = host
        self._mirror.host.zero_()
        self.slots[:] = np.arange(rows)
        divided[:] = segments.offsets[:-1], segments.counts, segments.starts
        self.states[:], self.starts = (states.sources, states.targets), divided[2]
        token_ids, slots, positions, division, images, tables = fields(self._mirror.there)
        self.batch = Batch(token_ids, positions, segments.reading(division), tables, slots, states.reading(images))
        self.push()

    def push(self) -> None:
        """Send what was written."""
        self._mirror.push()


class _PageTables:
    """The rows of a table array. A row is written anew only for another sequence; else its new pages are appended."""

    def __init__(self, tables: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
        self._tables = tables
        self._spaces: list[AddressSpace | None] = [None] * len(tables)
        self._written = [0] * len(tables)

    def write(self, row: int, space: AddressSpace) -> None:
        if self._spaces[row] is not space:
            self._spaces[row], self._written[row] = space, 0
        begin, end = self._written[row], len(space.pages)
        if begin < end:
            self._tables[row, begin:end] = space.table(begin)
            self._written[row] = end


def _placeholders(rows: int) -> tuple[Segments, StateSlots]:
    return (
        Segments(counts=(1,) * rows, starts=(0,) * rows),
        StateSlots(sources=(ZERO,) * rows, targets=tuple(range(rows))),
    )
