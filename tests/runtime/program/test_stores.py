"""Stores against a plain model of contents: sharing, copy on write, host replicas and accounting under any sequence of
moves.

Memory is faked so that every page and image has visible contents: what a holder should read is recomputed from its own
history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer.runtime.core.program import ProgramLimits, SequenceDemand
from ninfer.runtime.program.checkpoints import Checkpoint
from ninfer.runtime.program.feasibility import freed, host_takes
from ninfer.runtime.program.host_arena import Extent, HostArena
from ninfer.runtime.program.pages import pages_for
from ninfer.runtime.program.sequence import ZERO_IMAGE
from ninfer.runtime.program.sequence import Sequence as Active
from ninfer.runtime.program.stores import Stores
from ninfer.runtime.program.transfers import Transfers
from ninfer.types import PreparedPrompt, ResolvedSampling

GREEDY = ResolvedSampling(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, 0)
LIMITS = ProgramLimits(3, 512, 24, 128, checkpoint_images=5, host_images=3, host_kv_bytes=9 * 10)


@dataclass
class Memory:
    """Implements Transfers' interface on visible contents: a page is its list of tokens, an image the whole history."""

    page_bytes: int = 10
    image_bytes: int = 1
    pages: dict[int, list[int]] = field(default_factory=dict)
    images: dict[int, tuple[int, ...]] = field(default_factory=dict)
    host_pages: dict[int, list[int]] = field(default_factory=dict)
    host_images: dict[int, tuple[int, ...]] = field(default_factory=dict)

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


def demand(history: tuple[int, ...], budget: int) -> SequenceDemand:
    return SequenceDemand(PreparedPrompt(history, None, False), budget, GREEDY)


class StoresMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.stores = Stores(LIMITS, cast(Transfers, self.memory))
        self.token = 0

    # --- the moves ---

    @rule(prompt=st.integers(1, 200), budget=st.integers(1, 80))
    def open_root(self, prompt: int, budget: int) -> None:
        history = tuple(self.fresh() for _ in range(prompt))
        wanted = demand(history, budget)
        if self.stores.rows.available and pages_for(prompt + budget - 1) <= self.stores.pages.pool.available:
            self.stores.open_root(wanted)

    @precondition(lambda self: self.stores.checkpoints)
    @rule(data=st.data(), more=st.integers(1, 100), budget=st.integers(1, 60), consume=st.booleans())
    def open_from(self, data: st.DataObject, more: int, budget: int, consume: bool) -> None:
        source = self.pick(data)
        history = (*source.identity.tokens, *(self.fresh() for _ in range(more)))
        missing = sum(1 for _ in source.pages.missing())
        need = pages_for(len(history) + budget - 1) - len(source.pages.full) + missing
        if self.stores.rows.available and need <= self.stores.pages.pool.available:
            if missing:
                self.stores.restore(source)
            opened = self.stores.open_from(demand(history, budget), source, consume)
            assert opened.space.frontier == source.frontier

    @precondition(lambda self: self.stores.sequences)
    @rule(data=st.data(), tokens=st.integers(1, 90))
    def extend(self, data: st.DataObject, tokens: int) -> None:
        """Consume prompt, then chosen tokens, as units do."""
        active = data.draw(st.sampled_from(sorted(self.stores.sequences.values(), key=lambda s: s.handle.generation)))
        limit = len(active.prompt) + active.demand.max_new_tokens - 1
        self.advance(active, min(active.space.frontier + tokens, limit))

    def advance(self, active: Active, end: int) -> None:
        if end == active.space.frontier:
            return
        while len(active.history) < end:
            active.append([self.fresh()])
        active.space.grow(end)
        for position in range(active.space.frontier, end):
            self.write(active, position)
        target = self.stores.images.take()
        self.memory.images[target] = tuple(active.history[:end])
        if active.image != ZERO_IMAGE:
            self.stores.images.give_back(active.image)
        active.image = target
        active.space.advance(end)

    @precondition(lambda self: self.stores.sequences and self.stores.checkpoint_images < LIMITS.checkpoint_images)
    @rule(data=st.data(), retain=st.booleans())
    def publish(self, data: st.DataObject, retain: bool) -> None:
        consumed = [s for s in self.stores.sequences.values() if s.space.frontier]
        if consumed:
            active = data.draw(st.sampled_from(sorted(consumed, key=lambda s: s.handle.generation)))
            (self.stores.retain if retain else self.stores.freeze)(active)

    @precondition(lambda self: self.stores.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.stores.sequences, key=lambda h: h.generation)))
        self.stores.release(self.stores.sequences[handle])

    @precondition(lambda self: self.stores.checkpoints)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.stores.delete(self.pick(data))

    @precondition(lambda self: self.stores.checkpoints)
    @rule(data=st.data(), count=st.integers(1, 3))
    def store(self, data: st.DataObject, count: int) -> None:
        chosen = list(dict.fromkeys(self.pick(data) for _ in range(count)))
        effect = freed((), chosen)
        room = effect.stored_images <= self.stores.host_images.available
        if room and host_takes(self.stores.arena, effect, self.memory.page_bytes):
            before = self.stores.pages.pool.available
            self.stores.store(chosen)
            assert self.stores.pages.pool.available == before + len(effect.device_pages)

    @precondition(lambda self: self.stores.checkpoints)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        checkpoint = self.pick(data)
        if sum(1 for _ in checkpoint.pages.missing()) <= self.stores.pages.pool.available:
            self.stores.restore(checkpoint)

    # --- what must hold ---

    @invariant()
    def axes_balance(self) -> None:
        for axis in self.stores.occupancy().axes:
            assert min(axis.allocated, axis.reserved, axis.available) >= 0, axis
            assert axis.allocated + axis.reserved + axis.available == axis.capacity, axis

    @invariant()
    def every_holder_reads_its_own_history(self) -> None:
        for active in self.stores.sequences.values():
            history = list(active.history[: active.space.frontier])
            pages = [self.memory.pages[page] for page in active.space.table()]
            assert [token for page in pages for token in page][: len(history)] == history
            assert active.image == ZERO_IMAGE or list(self.memory.images[active.image]) == history
        for checkpoint in self.stores.checkpoints.values():
            self.check_checkpoint(checkpoint)

    @invariant()
    def one_writer_and_reservations_suffice(self) -> None:
        for active in self.stores.sequences.values():
            limit = len(active.prompt) + active.demand.max_new_tokens - 1
            assert len(active.space.pages) + active.space.reservation == pages_for(limit)
            tail = active.space.pages[-1:] if active.space.frontier % 64 else []
            assert all(page.writer is active.space for page in tail)

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        tokens = list(checkpoint.identity.tokens)
        assert len(tokens) == checkpoint.frontier
        for index, page in enumerate(checkpoint.pages.pages):
            want = tokens[index * 64 : index * 64 + checkpoint.pages.columns(index)]
            if page.device is not None:
                assert self.memory.pages[page.device][: len(want)] == want
            else:
                assert page.host is not None
                assert page.host_covers(len(want))
                assert self.memory.host_pages[page.host.extent.begin][: len(want)] == want
        if checkpoint.device_image is not None:
            assert list(self.memory.images[checkpoint.device_image]) == tokens
        if checkpoint.host_image is not None:
            assert list(self.memory.host_images[checkpoint.host_image]) == tokens
        assert checkpoint.device_image is not None or checkpoint.host_image is not None

    def teardown(self) -> None:
        self.stores.clear()
        for axis in self.stores.occupancy().axes:
            assert axis.available == axis.capacity, axis

    # --- helpers ---

    def pick(self, data: st.DataObject) -> Checkpoint:
        handles = sorted(self.stores.checkpoints, key=lambda handle: handle.generation)
        return self.stores.checkpoints[data.draw(st.sampled_from(handles))]

    def fresh(self) -> int:
        self.token += 1
        return self.token

    def write(self, active: Active, position: int) -> None:
        """Pages are reused without being cleared: columns past what was written before hold whatever was there."""
        device = active.space.pages[position // 64].device
        assert device is not None
        page = self.memory.pages.setdefault(device, [])
        column = position % 64
        page[column : column + 1] = [active.history[position]]


StoresMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestStores = StoresMachine.TestCase


def history(machine: StoresMachine, prompt: int, budget: int) -> Active:
    """A fresh sequence with room for `prompt + budget` tokens."""
    machine.open_root(prompt, budget)
    return max(machine.stores.sequences.values(), key=lambda active: active.handle.generation)


def consume(machine: StoresMachine, active: Active, tokens: int) -> None:
    machine.advance(active, active.space.frontier + tokens)
    machine.every_holder_reads_its_own_history()
    machine.axes_balance()


def continued(machine: StoresMachine, source: Checkpoint) -> Active:
    return machine.stores.open_from(demand((*source.identity.tokens, machine.fresh()), 40), source, consume=False)


def test_a_tail_page_is_extended_in_place_once_and_copied_for_the_next() -> None:
    machine = StoresMachine()
    active = history(machine, 10, 60)
    consume(machine, active, 10)
    endpoint = machine.stores.retain(active)
    first, second = continued(machine, endpoint), continued(machine, endpoint)
    assert first.space.pages[0] is endpoint.pages.pages[0]
    assert second.space.pages[0] is not endpoint.pages.pages[0]
    consume(machine, first, 5)
    consume(machine, second, 7)


def test_a_tail_page_that_is_extended_takes_no_free_page() -> None:
    machine = StoresMachine()
    active = history(machine, 10, 60)
    consume(machine, active, 10)
    endpoint = machine.stores.retain(active)
    history(machine, (LIMITS.kv_pages - 1) * 64, 1)
    assert machine.stores.pages.pool.available == 0
    assert continued(machine, endpoint).space.pages == list(endpoint.pages.pages)


def test_an_earlier_frontier_in_the_same_page_is_never_overwritten() -> None:
    machine = StoresMachine()
    active = history(machine, 10, 60)
    consume(machine, active, 10)
    early = machine.stores.freeze(active)
    consume(machine, active, 20)
    late = machine.stores.retain(active)
    assert early.pages.pages[0] is late.pages.pages[0]
    branch = continued(machine, early)
    assert branch.space.pages[0] is not early.pages.pages[0]
    consume(machine, branch, 4)


def test_rewriting_columns_that_were_given_up_voids_the_host_replica() -> None:
    machine = StoresMachine()
    active = history(machine, 10, 60)
    consume(machine, active, 10)
    early = machine.stores.freeze(active)
    consume(machine, active, 20)
    late = machine.stores.retain(active)
    machine.stores.store([early, late])
    machine.stores.restore(early)
    machine.stores.delete(late)
    page = early.pages.pages[0]
    assert page.host_covers(10)
    branch = continued(machine, early)
    assert branch.space.pages[0] is page
    assert not page.host_covers(10)
    consume(machine, branch, 30)
    machine.stores.release(branch)
    early.device_image = machine.stores.images.take()
    machine.memory.images[early.device_image] = tuple(early.identity.tokens)
    machine.stores.store([early])
    machine.every_holder_reads_its_own_history()


def test_fragmented_host_memory_refuses_a_run_that_its_free_bytes_would_hold() -> None:
    arena = HostArena(40)
    extents = [arena.allocate(10) for _ in range(4)]
    for index in (0, 2):
        extent = extents[index]
        assert extent is not None
        arena.free(extent)
    assert arena.free_bytes == 20
    assert not arena.fits((20,))
    assert arena.fits((10, 10))
    middle = extents[1]
    assert middle is not None
    assert arena.fits((30,), freed=(middle,))
