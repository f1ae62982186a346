"""The planner against brute force over every complete target of small instances."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.planner import Planner
from ninfer.runtime.core.cache.portfolio import Demand, Portfolio, Valuation
from ninfer.runtime.core.cache.search import PlanRequest, StopReason
from ninfer.runtime.core.cache.sessions import Binding, SessionIndex
from ninfer.runtime.core.program import Degradation, MaterialisationTarget, Readiness, Victim
from ninfer.types import CheckpointKind
from tests.runtime.core.cache.builders import COST, SmallPhysics, catalog_of, demand, entry, handle


class Instance:
    """One planning problem."""

    def __init__(self, physics: SmallPhysics, request: PlanRequest, portfolio: Portfolio) -> None:
        self.physics = physics
        self.catalog = physics.catalog
        self.request = request
        self.valuation: Valuation = portfolio.valuation()

    def targets(self) -> Iterator[MaterialisationTarget]:
        """Every source with every combination of degradations of the others."""
        sources: list[tuple[Entry | None, bool]] = [(None, False), *((item, False) for item in self.request.usable)]
        sources += [(item, True) for item in self.request.usable if item.handle == self.request.movable]
        for source, consume in sources:
            others = [item for item in self.catalog if item is not source]
            for fates in itertools.product(*(self.fates(item) for item in others)):
                victims = tuple(
                    Victim(item.handle, fate) for item, fate in zip(others, fates, strict=True) if fate is not None
                )
                yield MaterialisationTarget(
                    self.request.demand, None if source is None else source.handle, consume, victims
                )

    def fates(self, item: Entry) -> list[Degradation | None]:
        movable = self.physics.host_slots > 0 and self.physics.facts(item.handle).on_device
        return [None, Degradation.DELETE, *([Degradation.HOST_ONLY] if movable else [])]

    def cost(self, target: MaterialisationTarget) -> int | None:
        """J by its definition; None if Program refuses."""
        assessment = self.physics.assess(target)
        if not assessment.feasible:
            return None
        lost = target.victims
        if target.consume:
            assert target.checkpoint is not None
            lost = (*lost, Victim(target.checkpoint, Degradation.DELETE))
        reused = 0 if target.checkpoint is None else self.catalog[target.checkpoint].frontier
        transfer = COST.transfer(assessment.transfer_bytes, assessment.transfer_operations)
        length = len(target.demand.prompt.token_ids)
        return transfer + COST.prefill(reused, length) + self.valuation.loss(lost)


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    entries: list[Entry] = []
    for number in range(draw(st.integers(0, 4))):
        parent = draw(st.none() | st.sampled_from(entries)) if entries else None
        frontier = (parent.frontier if parent else 0) + draw(st.integers(1, 12))
        kind = draw(st.sampled_from(CheckpointKind))
        entries.append(
            entry(
                number,
                frontier,
                kind=kind,
                owner=draw(st.integers(0, 2)),
                parent=parent.handle.index if parent else None,
                hits=draw(st.integers(0, 1)),
            )
        )
    catalog = catalog_of(*entries)
    leaf = draw(st.none() | st.sampled_from(entries)) if entries else None
    usable = (leaf, *catalog.ancestors(leaf)) if leaf else ()
    length = (leaf.frontier if leaf else 0) + draw(st.integers(1, 16))
    host_slots = draw(st.integers(0, 2))
    host_only = {item.handle for item in entries[:host_slots] if draw(st.booleans())}
    physics = SmallPhysics(
        catalog,
        pages=draw(st.integers(1, 14)),
        busy=draw(st.integers(0, 5)),
        host_slots=host_slots,
        pinned=frozenset(item.handle for item in entries if item.handle not in host_only and draw(st.booleans())),
        host_only=host_only,
    )
    sessions = SessionIndex()
    if entries and draw(st.booleans()):
        sessions.bind("s", Binding(entries[-1].handle, entries[-1].owner, entries[-1].order))
    portfolio = Portfolio(catalog, sessions, COST, physics.facts)
    for number in range(draw(st.integers(0, 3))):
        if usable:
            portfolio.observe(Demand(bytes([number]), tuple(item.handle for item in usable)))
    movable = leaf.handle if leaf and draw(st.booleans()) else None
    request = PlanRequest(demand(length, draw(st.integers(0, 8))), usable, 0, movable)
    return Instance(physics, request, portfolio)


@settings(max_examples=150, deadline=None)
@given(instances(), st.sampled_from([1, 6, 48, 10_000]))
def test_as_good_as_brute_force(instance: Instance, budget: int) -> None:
    costs = [cost for target in instance.targets() if (cost := instance.cost(target)) is not None]
    planner = Planner(instance.physics, instance.catalog, COST, instance.physics.host_slots > 0, budget)
    planned = planner.plan(instance.request, instance.valuation)
    assert planned.assessment.feasible == bool(costs)
    if costs:
        assert planned.cost == instance.cost(planned.target)
        assert planned.cost - planned.gap <= min(costs) <= planned.cost
        assert planned.gap == 0 or planned.stop is not StopReason.OPTIMAL


@settings(max_examples=60, deadline=None)
@given(instances())
def test_exhaustive_when_the_budget_allows(instance: Instance) -> None:
    planner = Planner(instance.physics, instance.catalog, COST, instance.physics.host_slots > 0, 10_000)
    planned = planner.plan(instance.request, instance.valuation)
    if planned.stop is StopReason.OPTIMAL:
        costs = [cost for target in instance.targets() if (cost := instance.cost(target)) is not None]
        assert planned.cost == min(costs)


@settings(max_examples=60, deadline=None)
@given(instances())
def test_same_answer_every_time(instance: Instance) -> None:
    planner = Planner(instance.physics, instance.catalog, COST, True)
    assert planner.plan(instance.request, instance.valuation) == planner.plan(instance.request, instance.valuation)


def plan(physics: SmallPhysics, request: PlanRequest, catalog: Catalog) -> tuple[MaterialisationTarget, StopReason]:
    portfolio = Portfolio(catalog, SessionIndex(), COST, physics.facts)
    planned = Planner(physics, catalog, COST, physics.host_slots > 0).plan(request, portfolio.valuation())
    return planned.target, planned.stop


def test_longest_usable_checkpoint_with_room_to_spare() -> None:
    short, long = entry(1, 4), entry(2, 12, parent=1)
    catalog = catalog_of(short, long)
    target, stop = plan(SmallPhysics(catalog, pages=40), PlanRequest(demand(16), (long, short)), catalog)
    assert (target.checkpoint, target.victims, stop) == (handle(2), (), StopReason.BARE)


def test_live_session_outlives_disposable_checkpoints() -> None:
    live, other = entry(1, 12, owner=1), entry(2, 12, owner=2)
    catalog = catalog_of(live, other)
    sessions = SessionIndex()
    sessions.bind("s", Binding(live.handle, 1, 0))
    physics = SmallPhysics(catalog, pages=8)
    valuation = Portfolio(catalog, sessions, COST, physics.facts).valuation()
    planned = Planner(physics, catalog, COST, False).plan(PlanRequest(demand(12)), valuation)
    assert planned.target.victims == (Victim(handle(2), Degradation.DELETE),)


def test_a_history_is_shortened_from_its_end() -> None:
    catalog = catalog_of(entry(1, 8), entry(2, 12, parent=1), entry(3, 16, parent=2))
    target, _ = plan(SmallPhysics(catalog, pages=8), PlanRequest(demand(20)), catalog)
    assert target.victims == (Victim(handle(3), Degradation.DELETE),)


def test_host_tier_is_better_than_deletion() -> None:
    catalog = catalog_of(entry(1, 12))
    target, _ = plan(SmallPhysics(catalog, pages=4, host_slots=1), PlanRequest(demand(12)), catalog)
    assert target.victims == (Victim(handle(1), Degradation.HOST_ONLY),)


def test_blocked_and_infeasible() -> None:
    catalog = catalog_of(entry(1, 8))
    physics = SmallPhysics(catalog, pages=6, busy=4)
    planner = Planner(physics, catalog, COST, False)
    valuation = Portfolio(catalog, SessionIndex(), COST, physics.facts).valuation()
    blocked = planner.plan(PlanRequest(demand(12)), valuation)
    assert (blocked.assessment.readiness, blocked.stop) == (Readiness.TEMPORARILY_BLOCKED, StopReason.BLOCKED)
    never = planner.plan(PlanRequest(demand(25)), valuation)
    assert (never.assessment.readiness, never.stop) == (Readiness.PERMANENTLY_INFEASIBLE, StopReason.INFEASIBLE)


def test_only_a_shared_source_fits() -> None:
    """Pages that an active sequence holds anyway make a fork feasible where root is not."""
    catalog = catalog_of(entry(1, 16))
    physics = SmallPhysics(catalog, pages=6, pinned=frozenset([handle(1)]))
    target, _ = plan(physics, PlanRequest(demand(20), (catalog[handle(1)],)), catalog)
    assert target.checkpoint == handle(1)


@pytest.mark.parametrize("size", [16, 64])
def test_a_search_is_bounded(size: int) -> None:
    catalog = catalog_of(*(entry(number, 4, owner=number) for number in range(size)))
    physics = SmallPhysics(catalog, pages=size + 2)
    plan(physics, PlanRequest(demand(4 * (size // 2))), catalog)
    assert physics.assessed <= 32 + 2
