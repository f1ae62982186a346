"""ContextCache: the cache policy of one Engine, over everything else in this package.

It is asked what to do (choose, next capture, keep at the end?) and told what happened. It never acts: ResourceManager
turns its answers into transactions.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.runtime.core.cache.captures import capture_points
from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.cost import GENERIC, CostModel
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.cache.planner import Planner
from ninfer.runtime.core.cache.portfolio import DISPOSABLE, LIVE, RECENT, Demand, Portfolio
from ninfer.runtime.core.cache.prefix_digest import domain_digest, prefix_digests
from ninfer.runtime.core.cache.retention import Newcomer, Retention
from ninfer.runtime.core.cache.reuse import DISABLED, Lookup, ReuseFinder, explain
from ninfer.runtime.core.cache.search import Planned, PlanRequest
from ninfer.runtime.core.cache.sessions import Binding, SessionIndex
from ninfer.runtime.core.cache.sharing import NEEDED_DOMAINS, shared_candidates, shared_points
from ninfer.runtime.core.program import (
    Assessment,
    CheckpointHandle,
    Degradation,
    MaterialisationTarget,
    Program,
    ResourceResult,
    SequenceHandle,
    Victim,
)
from ninfer.runtime.core.request import CapturePoint, Continuation, RequestRecord
from ninfer.runtime.core.stats import Counters
from ninfer.types import CacheUse, CheckpointKind, FinishReason, Reuse

KEPT_ENDINGS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)
"""Endings after which the continuation may be asked for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best complete target for one request, what Program says of it, and why it reuses what it does."""

    target: MaterialisationTarget
    assessment: Assessment
    reuse: Reuse
    source: Entry | None = None
    matched: tuple[CheckpointHandle, ...] = ()

    @property
    def adoptable(self) -> bool:
        """True if the target can be sealed now."""
        return self.assessment.feasible


class ContextCache:
    """Catalog, sessions, demand and the policies over them."""

    def __init__(
        self, program: Program, counters: Counters, options: CacheOptions | None = None, cost: CostModel | None = None
    ) -> None:
        limits = program.limits
        self._program = program
        self._counters = counters
        self._enabled = limits.checkpoint_images > 0
        self._options = options or CacheOptions.of(limits)
        self._slots = limits.checkpoint_images + limits.host_images
        self._cost = cost or GENERIC["cpu"]
        host_tier = limits.host_images > 0
        self.catalog = Catalog()
        self._sessions = SessionIndex()
        self._portfolio = Portfolio(self.catalog, self._sessions, self._cost, program.facts)
        self._finder = ReuseFinder(self.catalog, program)
        self._planner = Planner(program, self.catalog, self._cost, host_tier)
        self._retention = Retention(self.catalog, self._options, program.facts if host_tier else None)

    # --- admission ---

    def choose(self, record: RequestRecord) -> Choice:
        """Plan a waiting request's materialisation. No side effects but counters."""
        reads = self._reads(record)
        binding = self._sessions.lookup(record.session_key) if reads else None
        endpoint = None if binding is None else binding.endpoint
        lookup = self._finder.look_up(record.demand.prompt, endpoint) if reads else Lookup()
        owner = None if binding is None else binding.owner
        planned = self._plan(PlanRequest(record.demand, lookup.usable, owner, endpoint))
        disabled = record.cache is CacheUse.DISABLED
        reuse = DISABLED if disabled else explain(lookup, planned.source, len(self.catalog))
        matched = tuple(entry.handle for entry in lookup.usable)
        return Choice(planned.target, planned.assessment, reuse, planned.source, matched)

    def _plan(self, request: PlanRequest) -> Planned:
        planned = self._planner.plan(request, self._portfolio.valuation())
        self._counters.planner_runs += 1
        self._counters.planner_stops[planned.stop] += 1
        return planned

    def _reads(self, record: RequestRecord) -> bool:
        return self._enabled and record.cache is CacheUse.READ_WRITE

    def materialised(self, record: RequestRecord, choice: Choice) -> None:
        """The request became active as chosen: count its demand and schedule its captures."""
        source = choice.source
        if choice.reuse.kind is not None:
            self._counters.reuse_hits[choice.reuse.kind] += 1
        else:
            self._counters.reuse_misses[choice.reuse.reason] += 1
        if not self._reads(record):
            return
        prompt = record.demand.prompt
        candidates = shared_candidates(prompt)
        reused = 0 if source is None else source.frontier
        private = capture_points(prompt, reused, max(self._slots - 1, 0), self._options.max_long_anchors)
        frontiers = [*(point.frontier for point in private), *(candidate.frontier for candidate in candidates)]
        digests = prefix_digests(prompt.token_ids, prompt.identity, frontiers)
        domain = domain_digest(record.session_key, record.order)
        shared = {frontier: (frontier, digests[frontier]) for frontier in (c.frontier for c in candidates)}
        self._portfolio.observe(Demand(domain, choice.matched, frozenset(shared.values())))
        points = shared_points(
            candidates,
            reused,
            [point.frontier for point in private],
            lambda frontier: len(self._portfolio.domains_of(shared[frontier])),
            self._cost,
            self._cost.transfer(0, 1),
        )
        below = self._used(source, record)
        merged = {point.frontier: point for point in (*points, *private)}
        ordered = [merged[frontier] for frontier in sorted(merged)] if self._slots > 1 else []
        record.continuation = Continuation(self._owner(record, source), domain, below, ordered, digests)

    def _used(self, source: Entry | None, record: RequestRecord) -> CheckpointHandle | None:
        """A request started from this entry. A moved source is gone: its nearest prefix remains."""
        if source is None:
            return None
        source.hits += 1
        source.last_used = self._portfolio.materialised
        if source.handle in self.catalog:
            return source.handle
        return next((entry.handle for entry in self.catalog.ancestors(source)), None)

    def _owner(self, record: RequestRecord, source: Entry | None) -> int:
        """The session's continuation goes on if the request started from one of its checkpoints."""
        binding = self._sessions.lookup(record.session_key)
        same = binding is not None and source is not None and source.owner == binding.owner
        return binding.owner if binding is not None and same else record.order

    # --- captures ---

    def capture_victims(self, record: RequestRecord, sequence: SequenceHandle) -> tuple[Victim, ...] | None:
        """Who makes room for the checkpoint that is due now; None to do without it."""
        going = record.continuation
        assert going is not None, "a capture is due"
        point = going.points[0]
        twin = self.catalog.at(point.frontier, going.digests[point.frontier])
        prompt = record.demand.prompt
        if twin is not None and self._program.common_prefix(twin.handle, prompt) == twin.frontier:
            twin.last_used = self._portfolio.materialised
            going.below = twin.handle
            return None
        valuation = self._portfolio.valuation()
        gain = valuation.gain(self._weight(going, point), point.kind, point.frontier, self._saved_below(going))
        newcomer = Newcomer(point.kind, going.owner, gain, point.spare_only)
        return self._retention.room_for(newcomer, valuation, lambda v: self._program.assess_capture(sequence, v))

    def _weight(self, going: Continuation, point: CapturePoint) -> int:
        if point.kind is not CheckpointKind.SHARED_PREFIX:
            return RECENT
        domains = self._portfolio.domains_of((point.frontier, going.digests[point.frontier]))
        return RECENT * len(domains) if len(domains) >= NEEDED_DOMAINS or not point.spare_only else DISPOSABLE

    def _saved_below(self, going: Continuation) -> int:
        below = self.catalog.get(going.below)
        return 0 if below is None else self._cost.saved(below.frontier)

    def captured(self, record: RequestRecord, checkpoint: CheckpointHandle | None) -> None:
        """The due capture was settled: published, or (None) done without."""
        going = record.continuation
        assert going is not None, "only requests with a continuation capture"
        point = going.points.pop(0)
        if checkpoint is None:
            self._counters.captures_skipped += 1
            return
        self._counters.captures += 1
        digest = going.digests[point.frontier]
        self._add(record, going, checkpoint, point.kind, point.frontier, digest)

    # --- the end of a sequence ---

    def retain_victims(self, record: RequestRecord, sequence: SequenceHandle) -> tuple[Victim, ...] | None:
        """Who makes room for a stopped request's continuation; None to release it."""
        going, ending = record.continuation, record.ending
        if going is None or ending is None or ending.reason not in KEPT_ENDINGS or not record.outputs:
            return None
        frontier = record.prompt_tokens + len(record.outputs) - 1
        twin = self.catalog.at(frontier, self._history_digest(record, frontier))
        if twin is not None:
            twin.last_used = self._portfolio.materialised
            self._bind(record, going, twin)
            return None
        valuation = self._portfolio.valuation(self._superseded(record, going))
        weight = RECENT if record.session_key is None else LIVE
        gain = valuation.gain(weight, CheckpointKind.SESSION_ENDPOINT, frontier, self._saved_below(going))
        newcomer = Newcomer(CheckpointKind.SESSION_ENDPOINT, going.owner, gain)
        return self._retention.room_for(newcomer, valuation, lambda v: self._program.assess_retain(sequence, v))

    def _superseded(self, record: RequestRecord, going: Continuation) -> frozenset[CheckpointHandle]:
        """What earlier requests left on this continuation's path. Other branches of the session stay what they are."""
        below = self.catalog.get(going.below)
        path = () if below is None else (below, *self.catalog.ancestors(below))
        return frozenset(e.handle for e in path if e.owner == going.owner and e.order < record.order)

    def retained(self, record: RequestRecord, checkpoint: CheckpointHandle) -> None:
        """The continuation was published. It becomes its session's endpoint unless a later one already is."""
        going = record.continuation
        assert going is not None, "only requests with a continuation are retained"
        frontier = self._program.facts(checkpoint).frontier
        digest = self._history_digest(record, frontier)
        entry = self._add(record, going, checkpoint, CheckpointKind.SESSION_ENDPOINT, frontier, digest)
        self._counters.retained += 1
        self._bind(record, going, entry)

    def _bind(self, record: RequestRecord, going: Continuation, entry: Entry) -> None:
        if record.session_key is not None:
            entry.owner, entry.order = going.owner, max(entry.order, record.order)
            self._sessions.bind(record.session_key, Binding(entry.handle, entry.owner, record.order))

    def _history_digest(self, record: RequestRecord, frontier: int) -> bytes:
        prompt = record.demand.prompt
        history = (*prompt.token_ids, *record.outputs)
        return prefix_digests(history, prompt.identity, [frontier])[frontier]

    # --- what became of checkpoints ---

    def _add(
        self,
        record: RequestRecord,
        going: Continuation,
        checkpoint: CheckpointHandle,
        kind: CheckpointKind,
        frontier: int,
        digest: bytes,
    ) -> Entry:
        born = self._portfolio.materialised
        entry = Entry(checkpoint, kind, frontier, digest, going.owner, record.order, going.domain, born, born)
        entry.parent = going.below
        self.catalog.add(entry)
        going.below = checkpoint
        return entry

    def adopt_losses(self, result: ResourceResult) -> None:
        """Checkpoints that a transaction degraded or ended, whatever its outcome."""
        self._counters.offloads += sum(v.degradation is Degradation.HOST_ONLY for v in result.degraded)
        deleted = {v.checkpoint for v in result.degraded if v.degradation is Degradation.DELETE}
        for checkpoint in result.removed:
            entry = self.catalog.remove(checkpoint)
            self._sessions.drop(checkpoint)
            if checkpoint in deleted:
                self._counters.evictions += 1
                self._finder.evicted(entry)

    def clear(self) -> None:
        """Forget everything (Engine failure)."""
        self.catalog.clear()
        self._sessions.clear()
        self._portfolio.clear()
        self._finder.clear()
