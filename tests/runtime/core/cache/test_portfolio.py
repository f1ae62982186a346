"""Losses are differences of portfolio values; retention never trades dear for cheap; reasons say what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.cost import GENERIC, CostModel, CostTable
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.cache.portfolio import EIGHTHS, Demand, Portfolio, Valuation
from ninfer.runtime.core.cache.prefix_digest import prefix_digests
from ninfer.runtime.core.cache.retention import Newcomer, Retention
from ninfer.runtime.core.cache.reuse import ReuseFinder, explain
from ninfer.runtime.core.cache.sessions import Binding, SessionIndex
from ninfer.runtime.core.program import Assessment, CheckpointHandle, Degradation, Readiness, Victim
from ninfer.types import CheckpointKind, PreparedPrompt, ReuseReason
from tests.runtime.core.cache.builders import COST, SmallPhysics, catalog_of, entry, handle

LIMITLESS = CacheOptions(100, 100, 100)


# --- cost ---


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_prefill_cost_adds_up(first: int, second: int, third: int) -> None:
    a, b, c = sorted((first, second, third))
    assert COST.prefill(a, b) + COST.prefill(b, c) == COST.prefill(a, c)
    assert COST.saved(b) == COST.prefill(0, b)


def test_transfers_are_bound_by_operations_or_bytes() -> None:
    model = CostModel(1, 1, transfer_batch_ns=50, transfer_operation_ns=20, kib_ns=1024)
    assert [model.transfer(*what) for what in ((0, 0), (10, 3), (500, 3))] == [0, 110, 500]


def test_measured_costs_where_they_match() -> None:
    table = CostTable({("cpu", "signature"): COST})
    assert table.select("cpu", "signature") is COST
    assert table.select("cpu", "other") is GENERIC["cpu"]
    assert table.select("cuda", "signature") is GENERIC["cuda"]
    assert table.select("abacus", "signature") is GENERIC["cpu"]


# --- losses ---


@dataclass
class Market:
    """A small catalog with sessions and demand."""

    catalog: Catalog
    sessions: SessionIndex = field(default_factory=SessionIndex)
    demands: list[Demand] = field(default_factory=list)

    def valuation(self) -> Valuation:
        physics = SmallPhysics(self.catalog, 100)
        portfolio = Portfolio(self.catalog, self.sessions, COST, physics.facts)
        for demand in self.demands:
            portfolio.observe(demand)
        return portfolio.valuation()


@st.composite
def markets(draw: st.DrawFn) -> Market:
    entries: list[Entry] = []
    for number in range(draw(st.integers(1, 6))):
        parent = draw(st.none() | st.sampled_from(entries)) if entries else None
        frontier = (parent.frontier if parent else 0) + draw(st.integers(1, 30))
        above = parent.handle.index if parent else None
        kind = draw(st.sampled_from(CheckpointKind))
        entries.append(entry(number, frontier, kind=kind, owner=draw(st.integers(0, 2)), parent=above))
    market = Market(catalog_of(*entries))
    for key in draw(st.lists(st.sampled_from(entries), max_size=2)):
        market.sessions.bind(str(key.handle), Binding(key.handle, key.owner, 0))
    for leaf in draw(st.lists(st.sampled_from(entries), max_size=4)):
        path = (leaf, *market.catalog.ancestors(leaf))
        market.demands.append(Demand(bytes([len(market.demands) % 2]), tuple(item.handle for item in path)))
    return market


def value(market: Market, valuation: Valuation, fates: dict[CheckpointHandle, Degradation]) -> int:
    """The portfolio value by its formula, checkpoint by checkpoint and demand by demand."""

    def worth(item: Entry) -> int:
        match fates.get(item.handle):
            case Degradation.DELETE:
                return 0
            case Degradation.HOST_ONLY:
                return COST.saved(item.frontier) - valuation.restore(item)
            case None:
                return COST.saved(item.frontier)

    total = 0
    for item in market.catalog:
        best = max(0, *(worth(other) for other in (item, *market.catalog.ancestors(item))))
        lost = COST.saved(item.frontier) - best
        total += -(valuation.weight(item) * EIGHTHS[item.kind] * lost // 8)
    for demand in market.demands:
        total += max(0, *(worth(market.catalog[found]) for found in demand.matched))
    return total


@settings(deadline=None)
@given(markets(), st.data())
def test_loss_is_the_fall_in_value_and_superadditive(market: Market, data: st.DataObject) -> None:
    valuation = market.valuation()
    handles = [item.handle for item in market.catalog]
    fates = data.draw(st.dictionaries(st.sampled_from(handles), st.sampled_from(Degradation)))
    victims = tuple(Victim(checkpoint, fate) for checkpoint, fate in fates.items())
    assert valuation.loss(victims) == value(market, valuation, {}) - value(market, valuation, fates)
    singles = sum(valuation.loss((victim,)) for victim in victims)
    for item in market.catalog:
        assert valuation.worth(item) == valuation.loss((Victim(item.handle, Degradation.DELETE),))
        assert valuation.removal(item) == valuation.loss((Victim(item.handle, Degradation.HOST_ONLY),))
    assert valuation.loss(victims) >= singles >= 0


def test_retention_classes() -> None:
    live, old, ending = entry(1, 10, owner=1), entry(2, 10, owner=2), entry(3, 10, owner=3)
    market = Market(catalog_of(live, old, ending))
    market.sessions.bind("live", Binding(handle(1), 1, 0))
    market.sessions.bind("ending", Binding(handle(3), 3, 0))
    market.demands = [Demand(b"", ())] * 32
    portfolio = Portfolio(market.catalog, market.sessions, COST, SmallPhysics(market.catalog, 9).facts)
    assert [portfolio.valuation().weight(e) for e in (live, old, ending)] == [16, 4, 16]
    for demand in market.demands:
        portfolio.observe(demand)
    valuation = portfolio.valuation({handle(3)})
    assert [valuation.weight(e) for e in (live, old, ending)] == [16, 1, 1]
    for demand in 7 * market.demands:
        portfolio.observe(demand)
    assert [portfolio.valuation().weight(e) for e in (live, old, ending)] == [1, 1, 1]


def test_anchors_of_a_live_session_are_no_more_than_recent() -> None:
    anchor = entry(1, 10, kind=CheckpointKind.LONG_ANCHOR, owner=1)
    market = Market(catalog_of(anchor, entry(2, 20, owner=1, parent=1)))
    market.sessions.bind("live", Binding(handle(2), 1, 0))
    assert market.valuation().weight(anchor) == 4


def test_shared_credit_counts_domains_in_the_window() -> None:
    shared = entry(1, 10, kind=CheckpointKind.SHARED_PREFIX)
    market = Market(catalog_of(shared))
    assert market.valuation().weight(shared) == 1
    market.demands = [Demand(b"a", (handle(1),)), Demand(b"b", (handle(1),)), Demand(b"a", (handle(1),))]
    assert market.valuation().weight(shared) == 8


def test_observed_prefixes_need_domains() -> None:
    portfolio = Portfolio(Catalog(), SessionIndex(), COST, SmallPhysics(Catalog(), 1).facts)
    for domain in (b"a", b"a", b"b"):
        portfolio.observe(Demand(domain, (), frozenset({(5, b"digest")})))
    assert portfolio.domains_of((5, b"digest")) == {b"a", b"b"}
    assert portfolio.domains_of((5, b"other")) == set()


# --- retention ---


def slots(market: Market, capacity: int) -> list[tuple[Victim, ...]]:
    return [()] if len(market.catalog) < capacity else []


@settings(deadline=None)
@given(markets(), st.integers(0, 200_000), st.integers(1, 7), st.booleans())
def test_room_is_made_only_at_a_profit(market: Market, gain: int, capacity: int, spare_only: bool) -> None:
    def assess(victims: tuple[Victim, ...]) -> Assessment:
        used = len(market.catalog) - len(victims)
        return Assessment(Readiness.READY if used < capacity else Readiness.TEMPORARILY_BLOCKED)

    valuation = market.valuation()
    retention = Retention(market.catalog, LIMITLESS, None)
    newcomer = Newcomer(CheckpointKind.LONG_ANCHOR, 9, gain, spare_only)
    victims = retention.room_for(newcomer, valuation, assess)
    cheapest = min(valuation.worth(item) for item in market.catalog)
    fits, one_too_many = len(market.catalog) < capacity, len(market.catalog) == capacity
    if gain > 0 and fits:
        assert victims == ()
    elif gain > cheapest and one_too_many and not spare_only:
        assert victims is not None
        assert len(victims) == 1
        assert valuation.loss(victims) == cheapest
    else:
        assert victims is None


def test_logical_limits_evict_whole_continuations() -> None:
    catalog = catalog_of(entry(1, 5, owner=1), entry(2, 9, owner=1, parent=1), entry(3, 50, owner=2))
    valuation = Market(catalog).valuation()
    retention = Retention(catalog, CacheOptions(2, 1, 1), None)

    def ready(victims: tuple[Victim, ...]) -> Assessment:
        return Assessment(Readiness.READY)

    new = retention.room_for(Newcomer(CheckpointKind.SESSION_ENDPOINT, 7, 10**9), valuation, ready)
    assert new is not None
    assert {victim.checkpoint for victim in new} == {handle(1), handle(2)}
    assert retention.room_for(Newcomer(CheckpointKind.SESSION_ENDPOINT, 2, 10**9), valuation, ready) == ()
    assert retention.room_for(Newcomer(CheckpointKind.SESSION_ENDPOINT, 7, 1), valuation, ready) is None
    none = Retention(catalog, CacheOptions(2, 1, 0), None)
    assert none.room_for(Newcomer(CheckpointKind.LONG_ANCHOR, 7, 10**9), valuation, ready) is None


def test_the_host_takes_what_would_be_deleted() -> None:
    catalog = catalog_of(entry(1, 50))
    physics = SmallPhysics(catalog, 100)
    retention = Retention(catalog, LIMITLESS, physics.facts)
    valuation = Market(catalog).valuation()

    def assess(victims: tuple[Victim, ...]) -> Assessment:
        return Assessment(Readiness.READY if victims else Readiness.TEMPORARILY_BLOCKED)

    victims = retention.room_for(Newcomer(CheckpointKind.LONG_ANCHOR, 7, 10**9), valuation, assess)
    assert victims == (Victim(handle(1), Degradation.HOST_ONLY),)


def test_a_full_host_drops_what_is_worth_least_for_what_must_leave_the_device() -> None:
    catalog = catalog_of(entry(1, 10), entry(2, 1000))
    physics = SmallPhysics(catalog, 1000, host_slots=1, host_only={handle(1)})

    def assess(victims: tuple[Victim, ...]) -> Assessment:
        deleted = {victim.checkpoint for victim in victims if victim.degradation is Degradation.DELETE}
        host = ({handle(1)} | {victim.checkpoint for victim in victims}) - deleted
        makes_room = any(victim.checkpoint == handle(2) for victim in victims) and len(host) <= 1
        return Assessment(Readiness.READY if makes_room else Readiness.TEMPORARILY_BLOCKED)

    retention = Retention(catalog, LIMITLESS, physics.facts)
    victims = retention.room_for(Newcomer(CheckpointKind.LONG_ANCHOR, 7, 10**9), Market(catalog).valuation(), assess)
    assert victims == (Victim(handle(1), Degradation.DELETE), Victim(handle(2), Degradation.HOST_ONLY))


# --- lookups and reasons ---


class Histories:
    """Exact comparison with the histories of checkpoints."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.histories: dict[CheckpointHandle, tuple[tuple[int, ...], bytes]] = {}

    def publish(self, number: int, history: tuple[int, ...], identity: bytes = b"", parent: int | None = None) -> Entry:
        digest = prefix_digests(history, identity, [len(history)])[len(history)]
        above = None if parent is None else handle(parent)
        item = Entry(
            handle(number), CheckpointKind.LONG_ANCHOR, len(history), digest, number, number, b"", parent=above
        )
        self.catalog.add(item)
        self.histories[item.handle] = (history, identity)
        return item

    def common_prefix(self, checkpoint: CheckpointHandle, prompt: PreparedPrompt) -> int:
        history, identity = self.histories[checkpoint]
        pairs = zip(history, prompt.token_ids, strict=False)
        equal = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(history), len(prompt.token_ids)))
        return equal if identity == prompt.identity else 0


def prepared(*token_ids: int, identity: bytes = b"") -> PreparedPrompt:
    return PreparedPrompt(token_ids, None, False, identity)


def test_lookup_finds_usable_prefixes_and_the_divergence() -> None:
    known = Histories()
    short, _ = known.publish(1, (1, 2)), known.publish(2, (1, 2, 3, 4, 5, 6), parent=1)
    finder = ReuseFinder(known.catalog, known)
    found = finder.look_up(prepared(1, 2, 3, 4, 9, 9), None)
    assert (found.usable, found.common) == ((short,), 4)
    reuse = explain(found, short, 2)
    assert (reuse.reason, reuse.frontier, reuse.common_tokens) == (ReuseReason.HIT, 2, 4)
    assert explain(found, None, 2).reason is ReuseReason.NOT_WORTH_IT


def test_the_last_token_is_always_recomputed() -> None:
    known = Histories()
    known.publish(1, (1, 2, 3))
    found = ReuseFinder(known.catalog, known).look_up(prepared(1, 2, 3), None)
    assert (found.usable, found.common) == ((), 3)


def test_misses_say_why() -> None:
    known = Histories()
    finder = ReuseFinder(known.catalog, known)
    assert explain(finder.look_up(prepared(1, 2, 3), None), None, 0).reason is ReuseReason.NO_CHECKPOINT
    item = known.publish(1, (1, 2, 3, 4))
    early = explain(finder.look_up(prepared(1, 2, 9), item.handle), None, 1)
    assert (early.reason, early.common_tokens) == (ReuseReason.NO_CHECKPOINT, 2)
    other = explain(finder.look_up(prepared(1, 2, 3, 4, 5, identity=b"other mode"), None), None, 1)
    assert other.reason is ReuseReason.IDENTITY_DIFFERS
    finder.evicted(known.catalog.remove(item.handle))
    gone = explain(finder.look_up(prepared(1, 2, 3, 4, 5), None), None, 0)
    assert (gone.reason, gone.common_tokens) == (ReuseReason.EVICTED, 4)


def test_a_digest_only_shortlists() -> None:
    """A checkpoint whose digest collides with the prompt's is not used."""
    known = Histories()
    item = known.publish(1, (1, 2))
    known.histories[item.handle] = ((7, 8), b"")
    assert ReuseFinder(known.catalog, known).look_up(prepared(1, 2, 3), None).usable == ()
