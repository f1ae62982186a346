"""Small catalogs and a small physical model for tests of the cache policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.cost import CostModel
from ninfer.runtime.core.program import (
    Assessment,
    CheckpointFacts,
    CheckpointHandle,
    Degradation,
    MaterialisationTarget,
    Readiness,
    SequenceDemand,
)
from ninfer.types import CheckpointKind, PreparedPrompt
from tests.fakes import GREEDY

COST = CostModel(token_ns=1000, pair_ns=3, transfer_batch_ns=50, transfer_operation_ns=20, kib_ns=700)


def handle(number: int) -> CheckpointHandle:
    return CheckpointHandle(number, number)


def entry(
    number: int,
    frontier: int,
    *,
    kind: CheckpointKind = CheckpointKind.SESSION_ENDPOINT,
    owner: int = 0,
    order: int = 0,
    parent: int | None = None,
    hits: int = 0,
) -> Entry:
    """A checkpoint whose digest is just its number."""
    return Entry(
        handle(number),
        kind,
        frontier,
        bytes([number]),
        owner,
        order,
        b"domain",
        hits=hits,
        parent=None if parent is None else handle(parent),
    )


def catalog_of(*entries: Entry) -> Catalog:
    catalog = Catalog()
    for item in entries:
        catalog.add(item)
    return catalog


def demand(length: int, new: int = 0) -> SequenceDemand:
    prompt = PreparedPrompt(tuple(range(length)), text=None, opens_thinking=False)
    return SequenceDemand(prompt, new, GREEDY)


@dataclass
class SmallPhysics:
    """Pages of 4 tokens, shared by reference along parent links; host replicas are whole checkpoints.

    A checkpoint holds the full pages of its ancestors and its own beyond them. `busy` pages belong to active sequences,
    `pinned` checkpoints are held by them as well.
    """

    catalog: Catalog
    pages: int
    busy: int = 0
    host_slots: int = 0
    pinned: frozenset[CheckpointHandle] = frozenset()
    host_only: set[CheckpointHandle] = field(default_factory=set)
    assessed: int = 0

    def facts(self, checkpoint: CheckpointHandle) -> CheckpointFacts:
        frontier = self.catalog[checkpoint].frontier
        on_device = checkpoint not in self.host_only
        return CheckpointFacts(frontier, on_device, not on_device, 0, restore_bytes=500 + frontier * 10)

    def held(self, checkpoint: CheckpointHandle) -> set[object]:
        """Ids of the pages of a checkpoint: full ones are named by the lowest checkpoint that has them."""
        item = self.catalog[checkpoint]
        owners = [*self.catalog.ancestors(item)][::-1]
        pages: set[object] = set()
        for number in range(item.frontier // 4):
            name = next((a for a in owners if a.frontier >= (number + 1) * 4), item)
            pages.add((name.handle, number))
        if item.frontier % 4:
            pages.add((checkpoint, "tail"))
        return pages

    def device(self, gone: set[CheckpointHandle]) -> set[object]:
        pages: set[object] = set()
        for item in self.catalog:
            stays = item.handle not in gone and item.handle not in self.host_only
            if stays or item.handle in self.pinned:
                pages |= self.held(item.handle)
        return pages

    def assess(self, target: MaterialisationTarget) -> Assessment:
        self.assessed += 1
        total = -(-(len(target.demand.prompt.token_ids) + target.demand.max_new_tokens) // 4)
        if total > self.pages:
            return Assessment(Readiness.PERMANENTLY_INFEASIBLE, "too long")
        assert target.checkpoint not in [victim.checkpoint for victim in target.victims]
        gone = {victim.checkpoint for victim in target.victims}
        moved = {v.checkpoint for v in target.victims if v.degradation is Degradation.HOST_ONLY}
        assert not moved & self.host_only
        deleted_hosts = len((gone - moved) & self.host_only)
        if len(moved) > self.host_slots - len(self.host_only) + deleted_hosts:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, "host")
        used = self.device(gone)
        operations = len(moved)
        if target.checkpoint is not None:
            mine = self.held(target.checkpoint)
            missing = mine - used
            used |= mine
            operations += len(missing) + (not target.consume)
            total -= self.catalog[target.checkpoint].frontier // 4
        if self.busy + len(used) + total > self.pages:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, "pages")
        readiness = Readiness.NEEDS_TRANSFER if operations else Readiness.READY
        return Assessment(readiness, transfer_bytes=operations * 300, transfer_operations=operations)
