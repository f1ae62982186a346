"""The planner: which checkpoint a request starts from, and what inactive checkpoints give up for it.

It minimises J = transfers + remaining prefill + future loss over complete targets, each judged by Program, with a
bounded number of assessments. Feasibility never depends on J: a request is blocked only if root and every usable
source are blocked even when everything else is given up.

Bound: with J* the least J of all targets, `cost - gap <= J* <= cost`. After an exhaustive search (StopReason OPTIMAL)
the gap is 0; otherwise it is the distance to the least floor, prefill plus additive loss, among the targets not judged.
Losses of single degradations add up to a floor of their joint loss, since losing the fallback of a lost checkpoint
costs more.
"""

from __future__ import annotations

from ninfer.runtime.core.cache.catalog import Catalog
from ninfer.runtime.core.cache.cost import CostModel
from ninfer.runtime.core.cache.portfolio import Valuation
from ninfer.runtime.core.cache.search import Physics, Planned, PlanRequest, Search, StopReason
from ninfer.runtime.core.program import Readiness

BUDGET = 32
"""Assessments of one search, besides those that feasibility itself needs."""
EXHAUSTIVE_ENTRIES = 12
"""Catalogs up to this size are searched best-first after the greedy answer."""


class Planner:
    """Plans one materialisation at a time. Holds no state between runs."""

    def __init__(
        self, physics: Physics, catalog: Catalog, cost: CostModel, host_tier: bool, budget: int = BUDGET
    ) -> None:
        self._physics = physics
        self._catalog = catalog
        self._cost = cost
        self._host_tier = host_tier
        self._budget = budget

    def plan(self, request: PlanRequest, valuation: Valuation) -> Planned:
        """The best complete target found. Its readiness is one of the four; only the feasible ones may be sealed."""
        search = Search(self._physics, self._catalog, self._cost, request, valuation, self._budget, self._host_tier)
        root = search.assess_root()
        if root.readiness is Readiness.PERMANENTLY_INFEASIBLE:
            return search.refused(root, StopReason.INFEASIBLE)
        search.try_bare()
        if search.settled:
            return search.answer(StopReason.BARE)
        search.relieve()
        if search.best is None:
            search.give_up_everything()
        if search.best is None:
            return search.refused(search.assess_root(alone=True), StopReason.BLOCKED)
        if search.settled or len(self._catalog) > EXHAUSTIVE_ENTRIES:
            return search.answer(StopReason.GREEDY)
        return search.answer(search.exhaust())
