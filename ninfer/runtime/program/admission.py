"""What could be done: assessments of complete targets against real occupancy, without side effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ninfer.runtime.core.program import (
    Assessment,
    Degradation,
    MaterialisationTarget,
    ProgramLimits,
    Readiness,
    SequenceDemand,
    SequenceHandle,
    Victim,
)
from ninfer.runtime.program.checkpoints import Checkpoint
from ninfer.runtime.program.feasibility import Freed, freed, host_takes
from ninfer.runtime.program.pages import PAGE_TOKENS, LogicalPage, pages_for
from ninfer.runtime.program.sequence import tokens_consumed
from ninfer.runtime.program.stores import Stores


class Admission:
    """Judges targets. Reads the stores, changes nothing."""

    def __init__(self, limits: ProgramLimits, stores: Stores) -> None:
        self._limits = limits
        self._stores = stores

    def assess(self, target: MaterialisationTarget) -> Assessment:
        """Judge the admission of a waiting request."""
        total = pages_for(tokens_consumed(target.demand))
        if total > self._limits.kv_pages:
            return Assessment(
                Readiness.PERMANENTLY_INFEASIBLE,
                f"the request needs {total} KV pages of {PAGE_TOKENS} tokens, the pool has {self._limits.kv_pages}; "
                "ask for fewer tokens or start with a larger --kv-capacity",
            )
        effect = self._effect(target.victims)
        source = self._source(target)
        need = total if source is None else _pages_from(source, total)
        reused = 0 if source is None else source.frontier
        free = self._stores.pages.pool.available + len(effect.device_pages)
        if not self._stores.rows.available or need > free:
            return Assessment(
                Readiness.TEMPORARILY_BLOCKED,
                f"needs {need} KV pages and a lane; {free} pages and {self._stores.rows.available} lanes are free",
                reused,
            )
        if (blocked := self._host_blocks(effect)) is not None:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, blocked, reused)
        return self._ready(effect, source, target.consume)

    def assess_checkpoint(self, victims: Sequence[Victim]) -> Assessment:
        """Judge the publication of one more checkpoint on the device."""
        effect = self._effect(victims)
        used = self._stores.checkpoint_images - effect.device_images
        if used >= self._limits.checkpoint_images:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, f"all {used} checkpoint image slots are in use")
        if (blocked := self._host_blocks(effect)) is not None:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, blocked)
        return self._ready(effect, None, True)

    def proves_backfill(
        self, head: SequenceDemand, donors: Iterable[SequenceHandle], borrower: MaterialisationTarget
    ) -> bool:
        """See the Program protocol. Pages are counted once, however many of the remaining holders share them."""
        gone = set(donors)
        staying = [s for handle, s in self._stores.sequences.items() if handle not in gone]
        total, source = pages_for(tokens_consumed(borrower.demand)), self._source(borrower)
        held: set[LogicalPage] = {page for s in staying for page in s.space.pages}
        held.update(() if source is None else source.pages.pages)
        need = total if source is None else _pages_from(source, total) - sum(1 for _ in source.pages.missing())
        promised = sum(s.space.reservation for s in staying) + need
        pages = self._limits.kv_pages - len(held) - promised
        return pages >= pages_for(tokens_consumed(head)) and len(staying) + 1 < self._limits.max_concurrency

    def _ready(self, effect: Freed, source: Checkpoint | None, consume: bool) -> Assessment:
        transfers = self._stores.transfers
        pages, images = len(effect.stored_pages), effect.stored_images
        if source is not None:
            pages += sum(1 for _ in source.pages.missing()) + _copies_tail(source)
            images += source.device_image is None or not consume
        stores = bool(effect.stored_pages) or effect.stored_images > 0
        restores = source is not None and (source.device_image is None or any(source.pages.missing()))
        return Assessment(
            Readiness.NEEDS_TRANSFER if stores or restores else Readiness.READY,
            reused_tokens=0 if source is None else source.frontier,
            transfer_bytes=pages * transfers.page_bytes + images * transfers.image_bytes,
            transfer_operations=pages + images,
        )

    def _host_blocks(self, effect: Freed) -> str | None:
        """Why the host cannot take the victims that are to go there, if it cannot."""
        if effect.stored_images > self._stores.host_images.available + effect.host_images:
            return f"the host has no slot for {effect.stored_images} state images"
        if not host_takes(self._stores.arena, effect, self._stores.transfers.page_bytes):
            return f"the host arena has no place for a run of {len(effect.stored_pages)} pages"
        return None

    def _effect(self, victims: Sequence[Victim]) -> Freed:
        chosen = {
            kind: [self._stores.checkpoints[v.checkpoint] for v in victims if v.degradation is kind]
            for kind in Degradation
        }
        return freed(chosen[Degradation.DELETE], chosen[Degradation.HOST_ONLY])

    def _source(self, target: MaterialisationTarget) -> Checkpoint | None:
        if target.checkpoint is None:
            return None
        assert all(victim.checkpoint != target.checkpoint for victim in target.victims), "a source is no victim"
        return self._stores.checkpoints[target.checkpoint]


def _pages_from(source: Checkpoint, total: int) -> int:
    """Device pages to find for a sequence of `total` pages that starts from `source`: restored, copied and new."""
    frozen = source.pages
    own_tail = frozen.tail is not None and not _copies_tail(source)
    return total - len(frozen.full) - own_tail + sum(1 for _ in frozen.missing())


def _copies_tail(source: Checkpoint) -> bool:
    """True if the partial last page must be copied on write."""
    tail = source.pages.tail
    return tail is not None and not tail.extendable(source.frontier % PAGE_TOKENS)
