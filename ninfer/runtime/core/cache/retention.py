"""Retention: whether a new checkpoint is worth its place, and who makes room for it.

A checkpoint's place is one of Program's image slots and one of the catalog's logical places. Room is made by the
cheapest degradation whose loss stays below the newcomer's gain. A live session's endpoint is given up only where
nothing else is left.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import product

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.cache.portfolio import Valuation
from ninfer.runtime.core.cache.victims import deletions, single_moves
from ninfer.runtime.core.program import Assessment, CheckpointFacts, CheckpointHandle, Degradation, Victim
from ninfer.types import CheckpointKind

CHOICES = 3
"""Checkpoints of each sort that are considered for giving way to a newcomer."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A checkpoint that could be published. `gain` is what it would add to the portfolio, in nanoseconds."""

    kind: CheckpointKind
    owner: int
    gain: int
    spare_only: bool = False


class Retention:
    """Finds room for newcomers."""

    def __init__(
        self,
        catalog: Catalog,
        options: CacheOptions,
        facts: Callable[[CheckpointHandle], CheckpointFacts] | None,
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._facts = facts

    def room_for(
        self, newcomer: Newcomer, valuation: Valuation, assess: Callable[[tuple[Victim, ...]], Assessment]
    ) -> tuple[Victim, ...] | None:
        """The degradations that let the newcomer in; None if it is not worth them or Program says no."""
        if newcomer.gain <= 0:
            return None
        forced = self._over_limit(newcomer, valuation)
        if forced is None or (forced and newcomer.spare_only):
            return None
        if assess(forced).feasible:
            return forced
        return None if newcomer.spare_only else self._displace(newcomer, valuation, forced, assess)

    def _displace(
        self,
        newcomer: Newcomer,
        valuation: Valuation,
        forced: tuple[Victim, ...],
        assess: Callable[[tuple[Victim, ...]], Assessment],
    ) -> tuple[Victim, ...] | None:
        kept = {victim.checkpoint for victim in forced}
        offers = [(valuation.loss(way), way) for way in self._ways(valuation, kept)]
        for loss, way in sorted(offers, key=lambda offer: offer[0]):
            victims = (*forced, *way)
            if loss >= newcomer.gain or valuation.loss(victims) >= newcomer.gain:
                break
            if assess(victims).feasible:
                return victims
        return None

    def _ways(self, valuation: Valuation, kept: Container[CheckpointHandle | None]) -> Iterator[tuple[Victim, ...]]:
        """Ways to free one image slot on the device: move a checkpoint to the host, drop one, or both if it is full.

        Of each sort the few that lose least are offered, live sessions' endpoints only where there is nothing else.
        """
        moves = single_moves(self._catalog, valuation, kept, self._facts)
        mortal = [move for move in moves if not valuation.is_live_endpoint(self._catalog[move.victim.checkpoint])]
        victims = [move.victim for move in mortal or moves]
        here = [victim for victim in victims if self._on_device(victim.checkpoint)]
        moved = [victim for victim in here if victim.degradation is Degradation.HOST_ONLY][:CHOICES]
        dropped = [victim for victim in here if victim.degradation is Degradation.DELETE][:CHOICES]
        yield from ((victim,) for victim in (*moved, *dropped))
        stored = [v for v in victims if v.degradation is Degradation.DELETE and not self._on_device(v.checkpoint)]
        yield from product(stored[:CHOICES], moved[:CHOICES])

    def _on_device(self, checkpoint: CheckpointHandle) -> bool:
        return self._facts is None or self._facts(checkpoint).on_device

    # --- logical places ---

    def _over_limit(self, newcomer: Newcomer, valuation: Valuation) -> tuple[Victim, ...] | None:
        """Who must go for the catalog's own limits: usually nobody; None if those who must are worth more."""
        match newcomer.kind:
            case CheckpointKind.SHARED_PREFIX:
                groups = [[entry] for entry in self._catalog.of_kind(newcomer.kind)]
                limit = self._options.max_shared_prefixes
            case CheckpointKind.LONG_ANCHOR:
                groups = [[entry] for entry in self._catalog.of_kind(newcomer.kind)]
                limit = self._options.max_long_anchors
            case _:
                groups = self._owners(newcomer.owner)
                limit = self._options.max_private_continuations
        if len(groups) < limit:
            return ()
        if not groups:
            return None
        cheapest = min(groups, key=lambda group: (valuation.loss(deletions(group)), group[0].handle.generation))
        loss = valuation.loss(deletions(cheapest))
        return deletions(cheapest) if loss < newcomer.gain else None

    def _owners(self, newcomer: int) -> list[list[Entry]]:
        """The private checkpoints of every other continuation."""
        owners: dict[int, list[Entry]] = {}
        for entry in self._catalog:
            if entry.kind is not CheckpointKind.SHARED_PREFIX and entry.owner != newcomer:
                owners.setdefault(entry.owner, []).append(entry)
        return list(owners.values())
