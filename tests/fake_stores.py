"""Books of the scripted Program: numbered pages, shared by reference, and checkpoints on the device, the host or both.

A sequence holds all the pages that it can ever need from its first moment. A checkpoint holds the pages of its tokens
and one image slot; a host replica is a slot that takes the whole checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ninfer.runtime.core.program import (
    AxisOccupancy,
    CheckpointFacts,
    CheckpointHandle,
    Degradation,
    MaterialisationTarget,
    ProgramLimits,
    SequenceDemand,
    SequenceHandle,
    Victim,
)


@dataclass
class FakeSequence:
    """What the scripted Program knows of an active sequence."""

    handle: SequenceHandle
    demand: SequenceDemand
    pages: list[int]
    prefilled: int = 0
    output: list[int] = field(default_factory=list)
    terminal: bool = False

    @property
    def frontier(self) -> int:
        """Tokens consumed: the last output token never is."""
        return self.prefilled + max(len(self.output) - 1, 0)

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens consumed."""
        return (*self.demand.prompt.token_ids, *self.output)[: self.frontier]


@dataclass
class FakeCheckpoint:
    """`pages` None: on the host only. `image`: its state has a device slot. A restore brings back pages only."""

    handle: CheckpointHandle
    tokens: tuple[int, ...]
    identity: bytes
    pages: list[int] | None
    image: bool = True
    on_host: bool = False


class FakeStores:
    """Who holds which page."""

    def __init__(self, limits: ProgramLimits) -> None:
        self.limits = limits
        self.sequences: dict[SequenceHandle, FakeSequence] = {}
        self.checkpoints: dict[CheckpointHandle, FakeCheckpoint] = {}
        self.held: list[int] = []
        self._generation = 0

    # --- counting ---

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.page_tokens)

    def pages_of(self, demand: SequenceDemand) -> int:
        """The full reservation of a demand."""
        return self.pages_for(len(demand.prompt.token_ids) + demand.max_new_tokens)

    def used(self, gone: Collection[CheckpointHandle] = ()) -> set[int]:
        """Pages in use once these checkpoints have left the device."""
        used = set(self.held)
        for sequence in self.sequences.values():
            used.update(sequence.pages)
        for checkpoint in self.checkpoints.values():
            if checkpoint.handle not in gone:
                used.update(checkpoint.pages or ())
        return used

    def facts(self, handle: CheckpointHandle) -> CheckpointFacts:
        checkpoint = self.checkpoints[handle]
        frontier, pages = len(checkpoint.tokens), set(checkpoint.pages or ())
        return CheckpointFacts(
            frontier=frontier,
            on_device=checkpoint.image,
            on_host=checkpoint.on_host,
            exclusive_pages=len(pages - self.used([handle])),
            restore_bytes=100 + frontier,
        )

    def shared(self, target: MaterialisationTarget) -> list[int]:
        """The source's full pages that are on the device."""
        source = None if target.checkpoint is None else self.checkpoints[target.checkpoint]
        if source is None or source.pages is None:
            return []
        return source.pages[: len(source.tokens) // self.limits.page_tokens]

    def need(self, target: MaterialisationTarget) -> int:
        """Fresh pages: for the sequence, and for a source that is on the host only."""
        total = self.pages_of(target.demand)
        if target.checkpoint is None:
            return total
        source = self.checkpoints[target.checkpoint]
        frontier = len(source.tokens)
        restored = self.pages_for(frontier) if source.pages is None else 0
        return total - frontier // self.limits.page_tokens + restored

    def images(self, gone: Collection[CheckpointHandle] = ()) -> int:
        """Device image slots of checkpoints in use."""
        return sum(c.image and c.handle not in gone for c in self.checkpoints.values())

    def host_fits(self, victims: Sequence[Victim]) -> bool:
        """True if the host takes the victims that are to go there, once the deleted ones are gone."""
        deleted = {victim.checkpoint for victim in victims if victim.degradation is Degradation.DELETE}
        stored = {c.handle for c in self.checkpoints.values() if c.on_host} - deleted
        stored |= {victim.checkpoint for victim in victims if victim.degradation is Degradation.HOST_ONLY}
        return len(stored) <= self.limits.host_images

    # --- changes ---

    def take(self, count: int) -> list[int]:
        """Fresh pages."""
        used = self.used()
        free = [page for page in range(self.limits.kv_pages) if page not in used]
        assert len(free) >= count, "more pages than there are"
        return free[:count]

    def degrade(self, victims: Iterable[Victim]) -> None:
        for victim in victims:
            if victim.degradation is Degradation.DELETE:
                del self.checkpoints[victim.checkpoint]
            else:
                checkpoint = self.checkpoints[victim.checkpoint]
                checkpoint.on_host, checkpoint.image, checkpoint.pages = True, False, None

    def open(self, target: MaterialisationTarget) -> FakeSequence:
        """Turn the held pages into a sequence; the source stays, or ends."""
        pages, self.held = self.held, []
        reused = 0
        shared: list[int] = []
        if target.checkpoint is not None:
            source = self.checkpoints[target.checkpoint]
            reused = len(source.tokens)
            if source.pages is None:
                count = self.pages_for(reused)
                source.pages, pages = pages[:count], pages[count:]
            shared = self.shared(target)
            if target.consume:
                del self.checkpoints[target.checkpoint]
        taken = {handle.index for handle in self.sequences}
        index = next(number for number in range(self.limits.max_concurrency) if number not in taken)
        self._generation += 1
        handle = SequenceHandle(index, self._generation)
        self.sequences[handle] = FakeSequence(handle, target.demand, [*shared, *pages], reused)
        return self.sequences[handle]

    def publish(self, sequence: FakeSequence) -> CheckpointHandle:
        """A checkpoint of everything that the sequence has consumed."""
        self._generation += 1
        handle = CheckpointHandle(self._generation, self._generation)
        history = sequence.history
        pages = sequence.pages[: self.pages_for(len(history))]
        self.checkpoints[handle] = FakeCheckpoint(handle, history, sequence.demand.prompt.identity, pages)
        return handle

    def clear(self) -> None:
        self.sequences.clear()
        self.checkpoints.clear()
        self.held = []

    # --- observation ---

    def axes(self) -> tuple[AxisOccupancy, ...]:
        committed = self.used() - {page for sequence in self.sequences.values() for page in sequence.pages}
        committed -= set(self.held)
        for sequence in self.sequences.values():
            committed.update(sequence.pages[: self.pages_for(sequence.frontier)])
        used, on_host = len(self.used()), sum(c.on_host for c in self.checkpoints.values())
        return (
            _axis("main", self.limits.kv_pages, len(committed), used - len(committed)),
            _axis("checkpoint_images", self.limits.checkpoint_images, self.images(), 0),
            _axis("host_images", self.limits.host_images, on_host, 0),
        )


def _axis(name: str, capacity: int, allocated: int, reserved: int) -> AxisOccupancy:
    return AxisOccupancy(name, capacity, allocated, reserved, capacity - allocated - reserved)
