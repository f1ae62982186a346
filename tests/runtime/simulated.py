"""The real Program over simulated tensors: pages are lists of tokens, images are digests, the model is a hash.

A unit reads its history twice, from its pages and from its state image, and the two must agree. The next token is a
function of the whole history, so that one wrong column or one stale image changes every answer that depends on it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from ninfer.runtime.core.program import PendingRow, ProgramLimits
from ninfer.runtime.program.host_arena import Extent
from ninfer.runtime.program.program import Program
from ninfer.runtime.program.sequence import ZERO_IMAGE
from ninfer.runtime.program.sequence import Sequence as Active
from ninfer.runtime.program.spans import Span
from ninfer.runtime.program.stores import Stores, image_slots
from ninfer.runtime.program.transfers import Transfers
from ninfer.runtime.program.units import Executor

PAGE = 64
PAGE_BYTES = 10


def digest(tokens: Sequence[int], before: int = 0) -> int:
    """CRC-32 of the tokens as i32 words, continuing from an earlier digest."""
    return zlib.crc32(array("i", tokens).tobytes(), before)


def next_token(history: int) -> int:
    """What the simulated model says after a history with this digest."""
    return 1000 + history % 9000


def answer_to(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """The first `count` tokens of the answer to a prompt."""
    state, out = digest(prompt), []
    for _ in range(count):
        out.append(next_token(state))
        state = digest(out[-1:], state)
    return tuple(out)


@dataclass
class Memory:
    """Device and host memory with visible contents. Has the interface of Transfers."""

    page_bytes: int = PAGE_BYTES
    image_bytes: int = 1
    pages: dict[int, list[int]] = field(default_factory=dict)
    images: dict[int, int] = field(default_factory=dict)
    host_pages: dict[int, list[int]] = field(default_factory=dict)
    host_images: dict[int, int] = field(default_factory=dict)

    def copy_columns(self, source: int, target: int, columns: int) -> None:
        self.pages[target] = self.pages[source][:columns]

    def copy_image(self, source: int, target: int) -> None:
        self.images[target] = self.images[source]

    def pack_pages(self, pages: Sequence[int], extent: Extent) -> None:
        for index, page in enumerate(pages):
            self.host_pages[extent.begin + index * self.page_bytes] = list(self.pages[page])

    def unpack_page(self, extent: Extent, page: int) -> None:
        self.pages[page] = list(self.host_pages[extent.begin])

    def store_image(self, source: int, host: int) -> None:
        self.host_images[host] = self.images[source]

    def load_image(self, host: int, target: int) -> None:
        self.images[target] = self.host_images[host]

    def history(self, table: Sequence[int], tokens: int) -> int:
        """Digest of the first `tokens` columns of a block table."""
        state = 0
        for index in range(-(-tokens // PAGE)):
            state = digest(self.pages[table[index]][: tokens - index * PAGE], state)
        return state


@dataclass
class HashModel:
    """Has the interface of Executor. A unit that is `armed` raises after having written everything."""

    memory: Memory
    armed: bool = False
    raised: int = 0

    def synchronise(self) -> None:
        """Nothing is ever under way."""

    def consume(self, span: Span) -> None:
        self._forward(span)
        self._fault()

    def choose(self, sequences: Sequence[Active], spans: Sequence[Span]) -> tuple[PendingRow, ...]:
        tokens = [next_token(self._forward(span)) for span in spans]
        self._fault()
        return tuple(PendingRow(s.handle, (token,)) for s, token in zip(sequences, tokens, strict=True))

    def _forward(self, span: Span) -> int:
        space, memory = span.space, self.memory
        state = 0 if span.source == ZERO_IMAGE else memory.images[span.source]
        assert memory.history(space.table(), space.frontier) == state, "pages and image tell different histories"
        space.grow(span.end)
        for position, token in enumerate(span.tokens, space.frontier):
            page = memory.pages.setdefault(space.slot(position) // PAGE, [])
            page[position % PAGE : position % PAGE + 1] = [token]
        memory.images[span.target] = digest(span.tokens, state)
        return memory.images[span.target]

    def _fault(self) -> None:
        if self.armed:
            self.armed = False
            self.raised += 1
            raise RuntimeError("simulated fault")


def axes(program: Program) -> dict[str, tuple[int, int, int]]:
    """(allocated, reserved, available) by name; they must make up the capacity."""
    found = {}
    for axis in program.occupancy().axes:
        assert min(axis.allocated, axis.reserved, axis.available) >= 0, axis
        assert axis.allocated + axis.reserved + axis.available == axis.capacity, axis
        found[axis.name] = (axis.allocated, axis.reserved, axis.available)
    return found


def check_ownership(program: Program) -> None:
    """Everything that is allocated is owned by somebody, and nothing is promised without an owner."""
    stores, counted = program._stores, axes(program)
    checkpoints, sequences = stores.checkpoints.values(), stores.sequences.values()
    kept = {page for checkpoint in checkpoints for page in checkpoint.pages.pages}
    held = kept.union(page for sequence in sequences for page in sequence.space.pages)
    on_host = {page.host.extent for page in held if page.host is not None}
    assert counted["kv_pages"][0] == sum(page.device is not None for page in held)
    assert counted["kv_pages"][1] == sum(s.space.reservation for s in sequences)
    assert counted["lanes"][0] == len(sequences)
    assert counted["host_images"][0] == sum(c.host_image is not None for c in checkpoints)
    assert counted["host_kv_bytes"][0] == sum(extent.size for extent in on_host)
    images = [c.device_image for c in checkpoints] + [s.image if s.image != ZERO_IMAGE else None for s in sequences]
    pending = () if program._pending is None else program._pending.provisional
    used = [image for image in (*images, *(p.span.target for p in pending)) if image is not None]
    assert len(set(used)) == len(used), "two owners of one image"
    assert stores.images.available == image_slots(program.limits) - len(used)


@dataclass
class Simulation:
    """A Program, what is behind it, and checks of what must hold at every boundary."""

    limits: ProgramLimits
    memory: Memory = field(default_factory=Memory)
    model: HashModel = field(init=False)
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        self.model = HashModel(self.memory)
        self.program = Program(cast(Executor, self.model), cast(Transfers, self.memory), self.limits)

    @property
    def stores(self) -> Stores:
        return self.program._stores

    @property
    def settled(self) -> bool:
        """False while a resource transaction is open, whose finished stages nobody has been told of."""
        return self.program._open is None

    def check_contents(self) -> None:
        """Every checkpoint still says what it was made from, wherever it lies."""
        for checkpoint in self.stores.checkpoints.values():
            tokens, pages = checkpoint.identity.tokens, checkpoint.pages.pages
            for index, page in enumerate(pages):
                want = list(tokens[index * PAGE : (index + 1) * PAGE])
                if page.device is not None:
                    assert self.memory.pages[page.device][: len(want)] == want
                if page.host_covers(len(want)):
                    assert page.host is not None
                    assert self.memory.host_pages[page.host.extent.begin][: len(want)] == want
                assert page.device is not None or page.host_covers(len(want)), "a page is nowhere"
            if checkpoint.device_image is not None:
                assert self.memory.images[checkpoint.device_image] == digest(tokens)
            if checkpoint.host_image is not None:
                assert self.memory.host_images[checkpoint.host_image] == digest(tokens)
            assert checkpoint.device_image is not None or checkpoint.host_image is not None
