"""What the control plane itself costs: planning an admission, and ordinary decode rounds, in CPU time.

Planning: requests that repeat, grow, branch and begin anew are put to a real Engine whose catalog holds 64 checkpoints,
once with pages to spare and once with so few that most admissions have to give checkpoints up. Each admission's
`ContextCache.choose` is timed on the worker thread: lookup, exact comparison, search, and all of Program's assessments.

Decode: eight requests decode in rounds over a Program and output sessions that cost nothing; what is timed is one whole
boundary of the Engine.

    python benchmarks/engine_overhead.py [--model FILE] [--threads N] [--json FILE]

Exit status 1: a target was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reuse_scenarios import Client

from ninfer.bench.client import token_pool
from ninfer.cli.models import demo_model
from ninfer.engine import Engine
from ninfer.runtime.core.cache.context_cache import Choice, ContextCache
from ninfer.runtime.core.engine_core import EngineCore
from ninfer.runtime.core.program import (
    Assessment,
    AxisOccupancy,
    CheckpointFacts,
    CheckpointHandle,
    DecodeRow,
    MaterialisationTarget,
    Occupancy,
    PendingRow,
    PrefillProgress,
    ProgramLimits,
    Readiness,
    ResourceOutcome,
    ResourceResult,
    RowDecision,
    SequenceDemand,
    SequenceHandle,
    TerminalChoice,
    Victim,
)
from ninfer.runtime.core.request import RequestRecord
from ninfer.types import (
    CacheUse,
    Channel,
    Delta,
    EngineOptions,
    Event,
    FinishReason,
    PreparedPrompt,
    ResolvedSampling,
    TokenLogprob,
)

CHECKPOINTS = 64
PLANNING_TARGET = 1e-3
DECODE_TARGET = 100e-6
BATCH = 8
BLOCKS, BLOCK = 40, 100
REPEATS = 5
CONTEXT, PAGES = 2048, 32
ADMISSIONS = 120


# --- planning -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planning:
    """One admission: CPU seconds of planning, checkpoints in the catalog then, what was given up, what was reused."""

    seconds: float
    checkpoints: int
    victims: int
    source: str


@contextlib.contextmanager
def timed_planning(measured: list[Planning]) -> Iterator[None]:
    """Time every choice that any Engine makes meanwhile, in CPU time of its own thread.

    Choosing has no effect, so each is made a few times over: reading the CPU clock itself takes long.
    """
    choose = ContextCache.choose

    def timed(self: ContextCache, record: RequestRecord) -> Choice:
        started = time.thread_time()
        for _ in range(REPEATS):
            choice = choose(self, record)
        seconds = (time.thread_time() - started) / REPEATS
        source = choice.reuse.reason if choice.reuse.kind is None else choice.reuse.kind
        measured.append(Planning(seconds, len(self.catalog), len(choice.target.victims), source.value))
        return choice

    ContextCache.choose = timed
    try:
        yield
    finally:
        ContextCache.choose = choose


def measure_planning(model: Path, threads: int, pages: int) -> list[Planning]:
    """Fill the catalog, then admit a mixture of requests and keep what was measured with the catalog nearly full."""
    options = EngineOptions(
        threads=threads,
        max_context=CONTEXT,
        max_concurrency=BATCH,
        kv_capacity=pages,
        device_state_slots=CHECKPOINTS,
        host_state_slots=0,
    )
    measured: list[Planning] = []
    with Engine(model, options) as engine:
        client, rng = Client(engine), random.Random(1)
        vocabulary = token_pool(engine)
        histories: list[list[int]] = []
        while engine.stats().checkpoints < CHECKPOINTS and len(histories) < 2 * CHECKPOINTS:
            histories.append(rng.choices(vocabulary, k=rng.randrange(512, 1200)))
            _grow(client, histories, len(histories) - 1)
        with timed_planning(measured):
            for _ in range(ADMISSIONS):
                _admit(client, histories, vocabulary, rng)
    return measured


def _grow(client: Client, histories: list[list[int]], number: int) -> None:
    visit = client.ask(histories[number], f"conversation {number}", CacheUse.READ_WRITE, 2)
    histories[number].extend(visit.answer)


def _admit(client: Client, histories: list[list[int]], vocabulary: Sequence[int], rng: random.Random) -> None:
    """The next turn of a conversation, an edit of one, a repeat, or a new one."""
    number, new = rng.randrange(len(histories)), rng.choices(vocabulary, k=48)
    match rng.choice(("turn", "turn", "edit", "repeat", "new")):
        case "turn" if len(histories[number]) < CONTEXT - 100:
            histories[number].extend(new)
        case "edit":
            del histories[number][rng.randrange(256, len(histories[number])) :]
            histories[number].extend(new)
        case "new":
            histories[number] = rng.choices(vocabulary, k=rng.randrange(256, 768))
    _grow(client, histories, number)


# --- decode ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FreePlan:
    """Decided at once. `demand` is None at the end of a sequence."""

    revision: int
    demand: SequenceDemand | None


class FreeTransaction:
    """Complete at the first stage."""

    def __init__(self, result: ResourceResult) -> None:
        self._result = result

    def advance(self) -> bool:
        return True

    def abort(self) -> ResourceResult:
        return self._result

    def result(self) -> ResourceResult:
        return self._result


@dataclass(frozen=True, slots=True)
class FreeBatch:
    """Rows made beforehand."""

    rows: tuple[PendingRow, ...]


class FreeProgram:
    """Everything fits, and every unit is done already: each sequence yields the same token for ever."""

    def __init__(self, lanes: int) -> None:
        self.limits = ProgramLimits(lanes, 1 << 20, lanes << 14, 1024)
        self.resource_revision = 0
        self._generation = 0
        self._last = FreeBatch(())
        self._occupancy = Occupancy((AxisOccupancy("main", lanes << 14, 0, 0, lanes << 14),))

    def assess(self, target: MaterialisationTarget) -> Assessment:
        return Assessment(Readiness.READY)

    def proves_backfill(
        self, head: SequenceDemand, donors: Sequence[SequenceHandle], borrower: MaterialisationTarget
    ) -> bool:
        return True

    def common_prefix(self, checkpoint: CheckpointHandle, prompt: PreparedPrompt) -> int:
        return 0

    def facts(self, checkpoint: CheckpointHandle) -> CheckpointFacts:
        return CheckpointFacts(0, True, False, 0)

    def assess_capture(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> Assessment:
        return Assessment(Readiness.TEMPORARILY_BLOCKED)

    def assess_retain(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> Assessment:
        return Assessment(Readiness.TEMPORARILY_BLOCKED)

    def seal(self, target: MaterialisationTarget) -> FreePlan:
        return FreePlan(self.resource_revision, target.demand)

    def seal_capture(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> FreePlan:
        return FreePlan(self.resource_revision, None)

    def seal_terminal(
        self, sequence: SequenceHandle, choice: TerminalChoice, victims: Sequence[Victim] = ()
    ) -> FreePlan:
        return FreePlan(self.resource_revision, None)

    def seal_reclaim(self, victims: Sequence[Victim]) -> FreePlan:
        return FreePlan(self.resource_revision, None)

    def start(self, plan: FreePlan) -> FreeTransaction:
        self.resource_revision += 1
        self._generation += 1
        handle = None if plan.demand is None else SequenceHandle(self._generation, self._generation)
        return FreeTransaction(ResourceResult(ResourceOutcome.COMMITTED, handle))

    def prefill(self, sequence: SequenceHandle, until: int | None = None) -> PrefillProgress:
        return PrefillProgress(1, FreeBatch((PendingRow(sequence, (1,)),)))

    def decode(self, rows: Sequence[DecodeRow]) -> FreeBatch:
        """Members change only while the first requests come in, so the last batch is usually right as it is."""
        if len(rows) != len(self._last.rows):
            self._last = FreeBatch(tuple(PendingRow(row.sequence, (1,)) for row in rows))
        return self._last

    def control(self, sequence: SequenceHandle, tokens: Sequence[int]) -> FreeBatch:
        return FreeBatch((PendingRow(sequence, tuple(tokens)),))

    def commit(self, batch: FreeBatch, decisions: Sequence[RowDecision]) -> None:
        return None

    def abort_pending(self, batch: FreeBatch) -> None:
        return None

    def occupancy(self) -> Occupancy:
        return self._occupancy

    def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class FreePreview:
    """One token, one piece of text."""

    accepted: int = 1
    finish: FinishReason | None = None
    control: tuple[int, ...] = ()
    boundaries: tuple[int, ...] = ()
    events: tuple[Event, ...] = (Delta(Channel.CONTENT, "a", (1,)),)


class FreeOutput:
    """Every token is an `a`."""

    preview_of_all = FreePreview()

    def preview(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], forced: bool) -> FreePreview:
        return self.preview_of_all

    def commit(self, preview: FreePreview) -> None:
        return None

    def flush(self) -> tuple[Event, ...]:
        return ()


def measure_decode(batch: int, blocks: int) -> list[float]:
    """CPU seconds per boundary in which `batch` requests decode, by blocks: reading the CPU clock itself takes long."""
    core, rounds = EngineCore(FreeProgram(batch)), blocks * BLOCK
    greedy = ResolvedSampling(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, 0)
    handles = [core.submit(PreparedPrompt((1,), None, False), FreeOutput(), 2 * rounds, greedy) for _ in range(batch)]
    while core.stats().decode_rows < batch * batch or core.stats().waiting:
        core.step()
    before = core.stats()
    seconds = []
    for _ in range(blocks):
        started = time.process_time()
        for _ in range(BLOCK):
            core.step()
        seconds.append((time.process_time() - started) / BLOCK)
    after = core.stats()
    assert after.decode_rows - before.decode_rows == batch * rounds, "every boundary was a full decode round"
    assert after.planner_runs == before.planner_runs, "ordinary decode plans nothing"
    del handles
    return seconds


# --- the report -----------------------------------------------------------------------------------------------


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "worst": ordered[-1],
    }


def planning_json(measured: Sequence[Planning]) -> dict[str, Any]:
    figures = _quantiles([item.seconds for item in measured])
    relieved = [item.seconds for item in measured if item.victims]
    return figures | {
        "checkpoints_median": statistics.median(item.checkpoints for item in measured),
        "with_victims": _quantiles(relieved) if relieved else None,
        "sources": dict(Counter(item.source for item in measured)),
        "target": PLANNING_TARGET,
        "passed": figures["median"] <= PLANNING_TARGET,
    }


def show(name: str, row: dict[str, Any]) -> None:
    times = "".join(f"{1e6 * row[key]:>11.0f}" for key in ("median", "p90", "worst", "target"))
    print(f"{name:<44}{row['count']:>7}{times}  {'pass' if row['passed'] else 'FAIL'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="the artifact that planning is measured on (the demo)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    model = arguments.model or demo_model()
    decode = _quantiles(measure_decode(BATCH, BLOCKS))
    results = {
        "decode": decode | {"target": DECODE_TARGET, "passed": decode["median"] <= DECODE_TARGET},
        "planning_roomy": planning_json(measure_planning(model, arguments.threads, BATCH * PAGES)),
        "planning_contended": planning_json(measure_planning(model, arguments.threads, 4 * PAGES)),
    }
    print(f"{'CPU time, microseconds':<44}{'count':>7}{'median':>11}{'p90':>11}{'worst':>11}{'target':>11}")
    show(f"decode round, {BATCH} requests", results["decode"])
    for key, name in (("planning_roomy", "planning, pages to spare"), ("planning_contended", "planning, few pages")):
        row = results[key]
        show(f"{name}, {row['checkpoints_median']:.0f} checkpoints", row)
        if row["with_victims"]:
            show("  of these with checkpoints given up", row["with_victims"] | {"target": 0, "passed": True})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    sys.exit(0 if all(row["passed"] for row in results.values()) else 1)


if __name__ == "__main__":
    main()
