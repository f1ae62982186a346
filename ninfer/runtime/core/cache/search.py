"""One run of the planner: candidates by floor, the incumbent, and every judgement made so far."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.cost import CostModel
from ninfer.runtime.core.cache.portfolio import Valuation
from ninfer.runtime.core.cache.victims import Move, deletions, may_leave, shortening_order, single_moves
from ninfer.runtime.core.program import (
    Assessment,
    CheckpointFacts,
    CheckpointHandle,
    Degradation,
    MaterialisationTarget,
    SequenceDemand,
    Victim,
)

REFINEMENTS = 6
"""The dearest victims of a greedy answer that one tries to spare, or to move to the host."""


class Physics(Protocol):
    """What the planner asks of Program."""

    def assess(self, target: MaterialisationTarget) -> Assessment: ...

    def facts(self, checkpoint: CheckpointHandle) -> CheckpointFacts: ...


class StopReason(enum.Enum):
    """Why a search ended: nothing had to be given up; exhaustively; out of budget; with the greedy answer; refused."""

    BARE = "bare"
    OPTIMAL = "optimal"
    BUDGET = "budget"
    GREEDY = "greedy"
    BLOCKED = "blocked"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned: the usable checkpoints longest first, the session's owner, and a source that may be moved.

    Only the endpoint of the very session that goes on may be moved: it is about to be superseded.
    """

    demand: SequenceDemand
    usable: tuple[Entry, ...] = ()
    owner: int | None = None
    movable: CheckpointHandle | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The choice, what Program says of it, and how good it is known to be. `cost` and `gap` are nanoseconds."""

    target: MaterialisationTarget
    assessment: Assessment
    source: Entry | None
    cost: int
    gap: int
    stop: StopReason
    assessments: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A source; no target with it has a J below `floor`."""

    ordinal: int
    source: Entry | None
    consume: bool
    floor: int

    @property
    def handle(self) -> CheckpointHandle | None:
        """The source's checkpoint, None for root."""
        return None if self.source is None else self.source.handle


_Rank = tuple[int, int, int, int, int, int, int, bool, int]


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best target so far."""

    rank: _Rank
    candidate: Candidate
    victims: tuple[Victim, ...]
    assessment: Assessment


class Search:
    """Phases of one run; each may improve `best`."""

    def __init__(
        self,
        physics: Physics,
        catalog: Catalog,
        cost: CostModel,
        request: PlanRequest,
        valuation: Valuation,
        budget: int,
        host_tier: bool,
    ) -> None:
        self._physics = physics
        self._catalog = catalog
        self._cost = cost
        self._request = request
        self._valuation = valuation
        self._budget = budget
        self._host_tier = host_tier
        self._length = len(request.demand.prompt.token_ids)
        self._judged: dict[tuple[CheckpointHandle | None, bool, frozenset[Victim]], Assessment] = {}
        self._candidates = self._list_candidates()
        self._blocked: list[Candidate] = []
        self._open_floor: int | None = min(candidate.floor for candidate in self._candidates)
        self.best: Incumbent | None = None

    def _list_candidates(self) -> list[Candidate]:
        """All sources by ascending floor. Root is always among them."""
        found = [Candidate(0, None, False, self._cost.prefill(0, self._length))]
        for source in self._request.usable:
            floor = self._cost.prefill(source.frontier, self._length)
            found.append(Candidate(len(found), source, False, floor))
            if source.handle == self._request.movable:
                moved = self._valuation.loss(deletions([source]))
                found.append(Candidate(len(found), source, True, floor + moved))
        return sorted(found, key=lambda candidate: (candidate.floor, candidate.ordinal))

    @property
    def _root(self) -> Candidate:
        return next(candidate for candidate in self._candidates if candidate.source is None)

    # --- judgements ---

    def assess_root(self, alone: bool = False) -> Assessment:
        """Program's word on root; `alone` gives up everything else."""
        return self._assess(self._root, deletions(list(self._catalog)) if alone else ())

    def _assess(self, candidate: Candidate, victims: tuple[Victim, ...]) -> Assessment:
        """Program's word on one complete target, asked once."""
        key = (candidate.handle, candidate.consume, frozenset(victims))
        if key not in self._judged:
            self._judged[key] = self._physics.assess(self._target(candidate, victims))
        return self._judged[key]

    def consider(self, candidate: Candidate, victims: tuple[Victim, ...]) -> bool:
        """Judge a target and keep it if it is the best so far; True if it is feasible."""
        assessment = self._assess(candidate, victims)
        if assessment.feasible:
            rank = self._rank(candidate, victims, assessment)
            if self.best is None or rank < self.best.rank:
                self.best = Incumbent(rank, candidate, victims, assessment)
        return assessment.feasible

    def _rank(self, candidate: Candidate, victims: tuple[Victim, ...], assessment: Assessment) -> _Rank:
        """J, then the tie-breakers in their order."""
        source = candidate.source
        lost = victims if not candidate.consume or source is None else (*victims, *deletions([source]))
        reused = 0 if source is None else source.frontier
        immediate = self._cost.transfer(assessment.transfer_bytes, assessment.transfer_operations)
        return (
            immediate + self._cost.prefill(reused, self._length) + self._valuation.loss(lost),
            sum(self._catalog[victim.checkpoint].hits > 0 for victim in lost),
            sum(victim.degradation is Degradation.DELETE for victim in lost),
            assessment.transfer_operations,
            assessment.transfer_bytes,
            self._length - reused,
            -reused,
            source is None or source.owner != self._request.owner,
            candidate.ordinal,
        )

    def _target(self, candidate: Candidate, victims: tuple[Victim, ...]) -> MaterialisationTarget:
        return MaterialisationTarget(self._request.demand, candidate.handle, candidate.consume, victims)

    def _beaten(self, floor: int) -> bool:
        return self.best is not None and floor >= self.best.rank[0]

    @property
    def _spent(self) -> bool:
        return len(self._judged) >= self._budget

    # --- phases ---

    @property
    def settled(self) -> bool:
        """True if there is an incumbent that no blocked candidate could beat even if it cost nothing to let it in."""
        return self.best is not None and all(self._beaten(candidate.floor) for candidate in self._blocked)

    def try_bare(self) -> None:
        """Candidates without victims, by ascending floor, as long as they can beat the incumbent."""
        for candidate in self._candidates:
            if self._beaten(candidate.floor):
                return
            if self._spent or not self.consider(candidate, ()):
                self._blocked.append(candidate)

    def relieve(self) -> None:
        """Blocked candidates, by ascending floor: the shortest sufficient start of the shortening order, pruned."""
        for candidate in self._blocked:
            if self._beaten(candidate.floor) or self._spent:
                return
            order = _Lazy(shortening_order(self._catalog, self._valuation, {candidate.handle}))
            chosen = self._sufficient(candidate, order)
            if chosen is not None:
                self._soften(candidate, self._prune(candidate, chosen))

    def _sufficient(self, candidate: Candidate, order: _Lazy) -> list[Entry] | None:
        """The shortest start of `order` whose deletion lets the candidate in: doubling, then bisection."""
        high = 1
        while not self.consider(candidate, deletions(order.first(high))):
            if high > len(order.first(high)):
                return None
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.consider(candidate, deletions(order.first(middle))):
                high = middle
            else:
                low = middle
        return order.first(high)

    def _prune(self, candidate: Candidate, chosen: list[Entry]) -> list[Entry]:
        """Spare what turns out not to be needed, dearest first."""
        for entry in self._dearest(chosen):
            spared = [other for other in chosen if other is not entry]
            if self._spent or not spared:
                break
            if self.consider(candidate, deletions(spared)):
                chosen = spared
        return chosen

    def _soften(self, candidate: Candidate, chosen: list[Entry]) -> None:
        """Rather move to the host than delete, dearest first, where that is better."""
        fates = {entry.handle: Degradation.DELETE for entry in chosen}
        for entry in self._dearest(chosen) if self._host_tier else ():
            if self._spent:
                return
            if may_leave(self._physics.facts(entry.handle)):
                before, moved = self.best, {**fates, entry.handle: Degradation.HOST_ONLY}
                self.consider(candidate, tuple(Victim(handle, fate) for handle, fate in moved.items()))
                fates = moved if self.best is not before else fates

    def _dearest(self, chosen: list[Entry]) -> list[Entry]:
        return sorted(chosen, key=self._valuation.worth, reverse=True)[:REFINEMENTS]

    def give_up_everything(self) -> None:
        """Root, then every source, with all else deleted: feasibility is settled here, whatever the budget."""
        for candidate in (self._root, *self._candidates):
            self.consider(candidate, deletions([e for e in self._catalog if e.handle != candidate.handle]))
            if self.best is not None:
                return

    def exhaust(self) -> StopReason:
        """Best-first over candidates and sets of degradations until nothing left can win, or the budget is spent."""
        nodes = [node for candidate in self._candidates for node in self._first_nodes(candidate)]
        heapq.heapify(nodes)
        while nodes and not self._beaten(nodes[0].floor):
            if self._spent:
                self._open_floor = nodes[0].floor
                return StopReason.BUDGET
            node = heapq.heappop(nodes)
            if node.consistent:
                self.consider(node.candidate, node.victims)
            for successor in node.successors():
                heapq.heappush(nodes, successor)
        self._open_floor = None
        return StopReason.OPTIMAL

    def _first_nodes(self, candidate: Candidate) -> list[Node]:
        """Nothing given up; everything else follows from it. Nowhere to start if the candidate cannot win."""
        if self._beaten(candidate.floor):
            return []
        facts = self._physics.facts if self._host_tier else None
        moves = single_moves(self._catalog, self._valuation, {candidate.handle}, facts)
        return [Node(candidate.floor, candidate.ordinal, (), candidate, moves)]

    # --- answers ---

    def answer(self, stop: StopReason) -> Planned:
        """The incumbent."""
        best = self.best
        assert best is not None, "only a search that found something has an answer"
        cost = best.rank[0]
        gap = 0 if self._open_floor is None else max(cost - self._open_floor, 0)
        target = self._target(best.candidate, best.victims)
        return Planned(target, best.assessment, best.candidate.source, cost, gap, stop, len(self._judged))

    def refused(self, assessment: Assessment, stop: StopReason) -> Planned:
        """Nothing can be adopted: root, and why not."""
        return Planned(self._target(self._root, ()), assessment, None, 0, 0, stop, len(self._judged))


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """A set of degradations: indices into `moves`, which are sorted by loss. Every set has exactly one predecessor."""

    floor: int
    ordinal: int
    chosen: tuple[int, ...]
    candidate: Candidate = field(compare=False)
    moves: tuple[Move, ...] = field(compare=False)

    @property
    def victims(self) -> tuple[Victim, ...]:
        """The degradations of this set."""
        return tuple(self.moves[index].victim for index in self.chosen)

    @property
    def consistent(self) -> bool:
        """False if one checkpoint is degraded twice."""
        return len({victim.checkpoint for victim in self.victims}) == len(self.chosen)

    def successors(self) -> list[Node]:
        """The set with the next move added, and with the next move instead of its last."""
        last = self.chosen[-1] if self.chosen else -1
        if last + 1 == len(self.moves):
            return []
        added = self.floor + self.moves[last + 1].loss
        longer = Node(added, self.ordinal, (*self.chosen, last + 1), self.candidate, self.moves)
        if not self.chosen:
            return [longer]
        return [
            longer,
            Node(
                added - self.moves[last].loss, self.ordinal, (*self.chosen[:-1], last + 1), self.candidate, self.moves
            ),
        ]


class _Lazy:
    """The first items of an iterator, as far as they were asked for."""

    def __init__(self, source: Iterator[Entry]) -> None:
        self._source = source
        self._known: list[Entry] = []

    def first(self, count: int) -> list[Entry]:
        """The first `count` items, or all if there are fewer."""
        while len(self._known) < count:
            item = next(self._source, None)
            if item is None:
                break
            self._known.append(item)
        return self._known[:count]
