"""What losing checkpoints would cost later: the portfolio value of the catalog, and the demand window behind it.

Every checkpoint stands for the requests that would diverge right behind it. They are worth the prefill that it saves
them over its nearest surviving prefix, weighted by how likely its kind is to be asked for and by its retention class:
1 disposable, 4 recent, 16 live session: what its latest turn left, anchors aside. A shared prefix has SharedCredit
instead: 4 for each reuse domain that used it within the window. Besides, each of the last 32 materialised requests is
expected once more as it was. A checkpoint that goes to the host only loses what its restore will take.

    value(C) = Σ_c weight(c) · likelihood(c) · saved(best survivor at or below c) + Σ_d saved(best survivor matching d)
    loss(V)  = value(catalog) − value(catalog with the degradations V)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.cost import CostModel
from ninfer.runtime.core.cache.sessions import SessionIndex
from ninfer.runtime.core.program import CheckpointFacts, CheckpointHandle, Degradation, Victim
from ninfer.types import CheckpointKind

WINDOW = 32
LIVE_WINDOW = 8 * WINDOW
"""Materialisations without which a checkpoint is no longer recent, and a session no longer live."""
FALLBACKS = 4
"""Checkpoints of one demand that are remembered: it hardly ever falls back further."""
DISPOSABLE, RECENT, LIVE = 1, 4, 16
EIGHTHS = {
    CheckpointKind.SESSION_ENDPOINT: 8,
    CheckpointKind.TURN_CLOSURE: 8,
    CheckpointKind.RESPONSE_REPLAY: 4,
    CheckpointKind.LONG_ANCHOR: 1,
    CheckpointKind.SHARED_PREFIX: 8,
}
"""How likely a request is to diverge right behind a checkpoint of this kind, in eighths."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One materialised request: its reuse domain and every checkpoint that it could have started from, longest first.

    `prefixes` are its shared-prefix candidates as (frontier, digest), whether published or not.
    """

    domain: bytes
    matched: tuple[CheckpointHandle, ...]
    prefixes: frozenset[tuple[int, bytes]] = frozenset()


class Portfolio:
    """Values checkpoints. `facts` are Program's, asked for only where a host replica makes a difference."""

    def __init__(
        self,
        catalog: Catalog,
        sessions: SessionIndex,
        cost: CostModel,
        facts: Callable[[CheckpointHandle], CheckpointFacts],
    ) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._cost = cost
        self._facts = facts
        self._window: deque[Demand] = deque(maxlen=WINDOW)
        self.materialised = 0

    def observe(self, demand: Demand) -> None:
        """A request was materialised."""
        self.materialised += 1
        self._window.append(replace(demand, matched=demand.matched[:FALLBACKS]))

    def domains_of(self, prefix: tuple[int, bytes]) -> set[bytes]:
        """Reuse domains in the window whose prompts had this shared-prefix candidate."""
        return {demand.domain for demand in self._window if prefix in demand.prefixes}

    def clear(self) -> None:
        """Forget all demand."""
        self._window.clear()

    def valuation(self, superseded: Collection[CheckpointHandle] = ()) -> Valuation:
        """The values as they are now, for many questions.

        `superseded` are checkpoints that the end of a request is about to take the place of.
        """
        return Valuation(
            self._catalog, self._sessions.live, self._cost, self._facts, self._window, self.materialised, superseded
        )


class Valuation:
    """A snapshot's questions and answers. Valid until the catalog, the sessions or the window change."""

    def __init__(
        self,
        catalog: Catalog,
        live: dict[int, int],
        cost: CostModel,
        facts: Callable[[CheckpointHandle], CheckpointFacts],
        window: Iterable[Demand],
        materialised: int,
        superseded: Collection[CheckpointHandle],
    ) -> None:
        self._catalog = catalog
        self._live = live
        self._cost = cost
        self._facts = facts
        self._materialised = materialised
        self._superseded = superseded
        self._window = window
        self._restores: dict[CheckpointHandle, int] = {}
        self._worths: dict[CheckpointHandle, int] = {}

    @cached_property
    def _demands(self) -> dict[CheckpointHandle, list[tuple[Entry, ...]]]:
        """Demands by each checkpoint that would serve them. Counted only when something is to be given up."""
        demands: dict[CheckpointHandle, list[tuple[Entry, ...]]] = {}
        for demand in self._window:
            matched = tuple(entry for handle in demand.matched if (entry := self._catalog.get(handle)) is not None)
            for entry in matched:
                demands.setdefault(entry.handle, []).append(matched)
        return demands

    @cached_property
    def _domains(self) -> dict[CheckpointHandle, set[bytes]]:
        """Reuse domains by each checkpoint that would have served them."""
        domains: dict[CheckpointHandle, set[bytes]] = {}
        for demand in self._window:
            for handle in demand.matched:
                domains.setdefault(handle, set()).add(demand.domain)
        return domains

    # --- one checkpoint ---

    def weight(self, entry: Entry) -> int:
        """Retention class, or SharedCredit of a shared prefix."""
        if entry.kind is CheckpointKind.SHARED_PREFIX:
            return max(RECENT * len(self._domains.get(entry.handle, ())), DISPOSABLE)
        if entry.handle in self._superseded:
            return DISPOSABLE
        idle = self._materialised - max(entry.born, entry.last_used)
        latest = self._live.get(entry.owner) == entry.order and entry.kind is not CheckpointKind.LONG_ANCHOR
        if latest and idle < LIVE_WINDOW:
            return LIVE
        return RECENT if idle < WINDOW else DISPOSABLE

    def is_live_endpoint(self, entry: Entry) -> bool:
        """True for the latest continuation of a bound session."""
        return entry.kind is CheckpointKind.SESSION_ENDPOINT and self.weight(entry) == LIVE

    def gain(self, weight: int, kind: CheckpointKind, frontier: int, below: int) -> int:
        """What one more checkpoint at `frontier` adds, where the best one so far saves `below` nanoseconds."""
        return weight * EIGHTHS[kind] * max(self._cost.saved(frontier) - below, 0) // 8

    def worth(self, entry: Entry) -> int:
        """What losing this checkpoint alone would cost: `loss` of one deletion."""
        if entry.handle not in self._worths:
            self._worths[entry.handle] = self._alone(entry, self._cost.saved(entry.frontier))
        return self._worths[entry.handle]

    def removal(self, entry: Entry) -> int:
        """What it would cost to have this checkpoint alone on the host only: `loss` of one HOST_ONLY."""
        return self._alone(entry, self.restore(entry))

    def _alone(self, entry: Entry, most: int) -> int:
        """The loss of degrading one checkpoint, whose users then lose `most`, or fall back to the next one."""
        saved, parent = self._cost.saved(entry.frontier), self._catalog.get(entry.parent)
        below = 0 if parent is None else self._cost.saved(parent.frontier)
        total = self.weight(entry) * EIGHTHS[entry.kind] * min(saved - below, most) // 8
        for matched in self._demands.get(entry.handle, ()):
            if matched[0] is entry:
                below = self._cost.saved(matched[1].frontier) if len(matched) > 1 else 0
                total += min(saved - below, most)
        return total

    # --- sets of degradations ---

    def loss(self, victims: Sequence[Victim]) -> int:
        """The fall in portfolio value if all these degradations were carried out. Never negative, monotone."""
        fates = {victim.checkpoint: victim.degradation for victim in victims}
        total = 0
        touched: dict[int, tuple[Entry, ...]] = {}
        for handle in fates:
            total += self._own_loss(self._catalog[handle], fates)
            touched.update((id(matched), matched) for matched in self._demands.get(handle, ()))
        return total + sum(self._demand_loss(matched, fates) for matched in touched.values())

    def _own_loss(self, entry: Entry, fates: dict[CheckpointHandle, Degradation]) -> int:
        path = chain((entry,), self._catalog.ancestors(entry))
        fall = self._cost.saved(entry.frontier) - self._best(path, fates)
        return self.weight(entry) * EIGHTHS[entry.kind] * fall // 8

    def _demand_loss(self, matched: tuple[Entry, ...], fates: dict[CheckpointHandle, Degradation]) -> int:
        return self._cost.saved(matched[0].frontier) - self._best(matched, fates)

    def _best(self, entries: Iterable[Entry], fates: dict[CheckpointHandle, Degradation]) -> int:
        """The most that any of these checkpoints would save, after `fates`. Longest first; 0 is root."""
        best = 0
        for entry in entries:
            fate = fates.get(entry.handle)
            if fate is Degradation.DELETE:
                continue
            saved = self._cost.saved(entry.frontier)
            if fate is None:
                return max(best, saved)
            best = max(best, saved - self.restore(entry))
        return best

    def restore(self, entry: Entry) -> int:
        """What starting from the checkpoint's host replica would take."""
        if entry.handle not in self._restores:
            facts = self._facts(entry.handle)
            operations = 1 + -(-facts.frontier // 64)
            self._restores[entry.handle] = self._cost.transfer(facts.restore_bytes, operations)
        return self._restores[entry.handle]
