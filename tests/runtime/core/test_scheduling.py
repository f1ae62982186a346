"""Order: FIFO, round membership, fairness between prefill and decode, admission checks, backfill."""

from __future__ import annotations

from itertools import groupby
from typing import cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ninfer.runtime.core.program import SequenceDemand, SequenceHandle
from ninfer.types import FinishReason
from tests.fakes import GREEDY, FakeSequence, ScriptedProgram, prompt_of
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.core.support import Bench, bench, expected, finish_of, rounds


def _admissions(program: ScriptedProgram) -> list[object]:
    """First prompt token of every request in the order in which its materialisation was sealed."""
    return [entry[1] for entry in program.calls("seal")]


def _units(program: ScriptedProgram) -> list[str]:
    return [str(entry[0]) for entry in program.log if entry[0] in ("prefill", "decode", "control")]


@pytest.mark.parametrize("lanes", range(1, 9))
def test_every_request_gets_its_own_tokens_whatever_the_concurrency(lanes: int) -> None:
    b = bench(pending=30, program=ScriptedProgram(lanes=lanes, pages=64, span=2))
    handles = {first: b.submit(prompt=1 + first % 7, new=1 + first % 5, first=first) for first in range(1, 25)}
    b.settle()
    for first, handle in handles.items():
        assert handle.result().token_ids == expected(1 + first % 7, 1 + first % 5, first)
    assert _admissions(b.program) == list(handles)
    b.check_clean()


@pytest.mark.parametrize("lanes", range(1, 9))
def test_all_lanes_decode_in_one_round(lanes: int) -> None:
    b = bench(pending=30, program=ScriptedProgram(lanes=lanes, pages=64))
    handles = [b.submit(new=24, first=first) for first in range(1, lanes + 4)]
    b.settle()
    sizes = [len(members) for members in rounds(b.program)]
    assert max(sizes) == lanes
    assert all(handle.finished for handle in handles)


def test_a_round_holds_all_and_only_the_decode_ready_rows() -> None:
    """Against Program's books: ready = prompt done, no forced tokens owed, not terminal; in order of submission."""
    b = bench(pending=30, program=ScriptedProgram(lanes=4, pages=64, prefill_chunk=3))
    handles = [
        b.submit(
            prompt=1 + 3 * (first % 4),
            new=12 + first % 6,
            first=first,
            output=FakeOutput(b.program.log, first, controls={6: (7,)} if first % 3 == 0 else {}),
        )
        for first in range(1, 21)
    ]
    checked = 0

    def observe() -> None:
        nonlocal checked
        if b.program.log[-1][0] != "decode":
            return
        checked += 1
        states = b.program.sequences.values()
        ready = [state for state in states if state.output and not state.terminal and not _owes_control(state)]
        assert rounds(b.program)[-1] == tuple(state.handle for state in ready)

    b.program.observer = observe
    b.settle()
    assert checked > 10
    assert all(handle.result().finish_reason is FinishReason.LENGTH for handle in handles)
    assert max(len(members) for members in rounds(b.program)) == 4


def _owes_control(state: FakeSequence) -> bool:
    return state.demand.prompt.token_ids[0] % 3 == 0 and len(state.output) == 6


def test_decode_and_prefill_alternate_while_both_have_work() -> None:
    b = bench(program=ScriptedProgram(lanes=2, pages=64, max_context=64, prefill_chunk=2))
    short = b.submit(prompt=1, new=30)
    b.step(3)
    long = b.submit(prompt=20, new=4, first=9)
    start = len(_units(b.program))
    b.run_until(lambda: long.finished)
    units = _units(b.program)[start:]
    last = len(units) - units[::-1].index("prefill")
    runs = [(kind, len(list(group))) for kind, group in groupby(units[units.index("prefill") : last])]
    assert all(count == 1 for _, count in runs)
    assert [kind for kind, _ in runs].count("prefill") == 10
    b.settle()
    assert short.finished


def test_prefill_blocks_admission_by_default() -> None:
    b = bench(program=ScriptedProgram(prefill_chunk=2))
    long, short = b.submit(prompt=10, new=2), b.submit(prompt=1, new=2, first=9)
    b.run_until(lambda: len(_admissions(b.program)) == 2)
    names = [entry[0] for entry in b.program.log]
    assert names[: len(names) - names[::-1].index("seal")].count("prefill") == 5
    b.settle()
    assert long.finished
    assert short.finished


def test_concurrent_prefill_takes_turns_by_chunk() -> None:
    b = bench(concurrent_prefill=True, program=ScriptedProgram(lanes=3, prefill_chunk=2))
    handles = [b.submit(prompt=6, new=2, first=first) for first in (1, 9, 20)]
    b.settle()
    chunks = [entry[1] for entry in b.program.calls("prefill")]
    first, second, third = dict.fromkeys(chunks)
    assert chunks[0] is first
    assert chunks[-1] is third
    assert sorted(chunks.index(handle) for handle in (first, second, third)) != [0, 3, 6]
    assert all(handle.finished for handle in handles)
    assert chunks.count(second) == 3


def test_a_waiting_request_joins_another_ones_prefill_when_allowed() -> None:
    b = bench(concurrent_prefill=True, program=ScriptedProgram(prefill_chunk=1))
    long = b.submit(prompt=20, new=2)
    b.step(3)
    short = b.submit(prompt=1, new=2, first=50)
    b.run_until(lambda: short.finished)
    assert not long.finished
    b.settle()
    assert long.finished


def test_one_admission_between_decode_rounds_of_a_ready_lane() -> None:
    b = bench(concurrent_prefill=True, program=ScriptedProgram(lanes=8, pages=64))
    going = b.submit(new=30, prompt=1)
    b.step(3)
    others = [b.submit(first=first, new=2) for first in range(10, 16)]
    b.run_until(lambda: all(handle.finished for handle in others))
    kinds = [str(entry[0]) for entry in b.program.log if entry[0] in ("seal", "decode")]
    assert "seal seal" not in " ".join(kinds[1:])
    assert not going.finished


# --- admission is attempted only when a fact changed -------------------------------------------------------


def test_ordinary_decode_attempts_no_admission() -> None:
    b = bench(program=ScriptedProgram(lanes=2, pages=8))
    running = b.submit(prompt=1, new=25)
    blocked = b.submit(prompt=1, new=25, first=9)
    b.step(4)
    attempts = b.core.stats().admission_attempts
    assert attempts == 2
    b.step(15)
    assert b.core.stats().admission_attempts == attempts
    assert len(b.program.calls("assess")) == attempts
    b.settle()
    assert running.finished
    assert blocked.finished
    assert b.core.stats().admission_attempts == attempts + 1


def test_no_free_lane_no_attempt() -> None:
    b = bench(program=ScriptedProgram(lanes=1))
    first, second = b.submit(new=10), b.submit(new=10, first=9)
    b.run_until(lambda: first.finished)
    assert b.core.stats().admission_attempts <= 2
    b.settle()
    assert second.finished
    assert b.core.stats().admission_attempts == 2


# --- backfill ---------------------------------------------------------------------------------------------


def _blocked_head(b: Bench) -> tuple[object, object]:
    """An incumbent of 6 of 10 pages with 20 tokens to go, and a head that needs 8."""
    incumbent = b.submit(prompt=4, new=20)
    head = b.submit(prompt=4, new=28, first=9)
    b.step(3)
    return incumbent, head


def _tight() -> ScriptedProgram:
    return ScriptedProgram(lanes=3, pages=10, page_tokens=4, max_context=40)


def test_a_later_request_passes_with_a_proof_only() -> None:
    b = bench(program=_tight())
    handles = _blocked_head(b)
    small = b.submit(prompt=4, new=4, first=50)  # 2 pages: 10 - 2 = 8 are left for the head
    large = b.submit(prompt=4, new=8, first=70)  # 3 pages fit now, but not beside the head
    b.step(3)
    assert _admissions(b.program) == [1, 50]
    assert ("proves_backfill", 9, 50) in b.program.log
    b.settle()
    assert _admissions(b.program) == [1, 50, 9, 70]
    assert b.core.stats().backfills == 1
    assert (small.finished, large.finished) == (True, True)
    assert len(handles) == 2
    b.check_clean()


def test_borrowers_that_never_end_do_not_delay_the_head() -> None:
    """The head enters as soon as the donors end, although the borrower still runs."""
    b = bench(program=ScriptedProgram(lanes=3, pages=14, page_tokens=4, max_context=40))
    donor = b.submit(prompt=4, new=20)  # 6 pages
    b.step(8)
    head = b.submit(prompt=4, new=32, first=9)  # 9 pages
    borrower = b.submit(prompt=1, new=19, first=50)  # 5 pages, runs longest
    b.run_until(lambda: donor.finished)
    b.step(2)
    assert _admissions(b.program) == [1, 50, 9]
    assert (head.finished, borrower.finished) == (False, False)
    b.settle()
    b.check_clean()


def test_a_refused_borrower_is_not_asked_again_under_the_same_revision() -> None:
    b = bench(program=_tight())
    handles = _blocked_head(b)
    large = b.submit(prompt=4, new=8, first=70)
    b.step(10)
    assert b.program.calls("proves_backfill") == [("proves_backfill", 9, 70)]
    b.settle()
    assert large.finished
    assert len(handles) == 2


def test_each_borrower_needs_a_new_proof_after_the_revision_moved() -> None:
    b = bench(program=ScriptedProgram(lanes=4, pages=10, page_tokens=4, max_context=40))
    handles = _blocked_head(b)
    one = b.submit(prompt=2, new=2, first=50)
    two = b.submit(prompt=2, new=2, first=60)
    three = b.submit(prompt=2, new=2, first=70)
    b.run_until(lambda: len(b.program.calls("proves_backfill")) >= 3)
    assert _admissions(b.program)[:3] == [1, 50, 60]
    b.settle()
    assert all(handle.finished for handle in (one, two, three))
    assert len(handles) == 2
    b.check_clean()


def test_protection_ends_with_its_head() -> None:
    b = bench(program=_tight())
    incumbent = b.submit(prompt=4, new=20)
    head = b.submit(prompt=4, new=28, first=9)
    b.step(3)
    large = b.submit(prompt=4, new=8, first=70)
    b.step(2)
    assert _admissions(b.program) == [1]
    head.cancel()
    b.step(2)
    assert _admissions(b.program) == [1, 70]
    assert b.core.stats().backfills == 0
    b.settle()
    assert finish_of(head).reason is FinishReason.CANCELLED
    assert incumbent.finished
    assert large.finished


def test_an_infeasible_borrower_fails_without_waiting_for_the_head() -> None:
    b = bench(program=ScriptedProgram(lanes=3, pages=9, page_tokens=4, max_context=64))
    handles = b.submit(prompt=4, new=20), b.submit(prompt=4, new=20, first=9)
    b.step(3)
    hopeless = b.submit(prompt=4, new=50, first=70)
    b.step(2)
    assert finish_of(hopeless).reason is FinishReason.ERROR
    assert not handles[0].finished
    b.settle()
    b.check_clean()


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(2, 4),
    pages=st.integers(6, 12),
    shapes=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 20), st.integers(0, 4)), min_size=3, max_size=12),
)
def test_the_end_of_its_donors_always_lets_a_blocked_head_in(
    lanes: int, pages: int, shapes: list[tuple[int, int, int]]
) -> None:
    """Donors by Program's books: whoever was active when the head was first turned away."""
    program = ScriptedProgram(lanes=lanes, pages=pages, page_tokens=4, max_context=40)
    b = bench(pending=20, program=program)
    donors: dict[int, set[SequenceHandle]] = {}
    queue: list[int] = []

    def observe() -> None:
        operation, *details = program.log[-1]
        if operation == "seal":
            queue.remove(cast(int, details[0]))
        if operation == "assess" and details[0] == queue[0]:
            active = set(program.sequences)
            incumbents = donors.setdefault(queue[0], active)
            if not incumbents & active:
                demand = SequenceDemand(prompt_of(*shape_of[queue[0]]), new_of[queue[0]], GREEDY)
                assert program.stores.pages_of(demand) <= program.free_pages

    fitting = [(prompt, new, steps) for prompt, new, steps in shapes if prompt + new <= 4 * pages]
    shape_of = {100 * number: (prompt, 100 * number) for number, (prompt, _, _) in enumerate(fitting)}
    new_of = {100 * number: new for number, (_, new, _) in enumerate(fitting)}
    program.observer = observe
    handles = []
    for number, (prompt, new, steps) in enumerate(fitting):
        queue.append(100 * number)
        handles.append(b.submit(prompt=prompt, new=new, first=100 * number))
        b.step(steps)
    b.settle()
    assert all(handle.result().finish_reason is FinishReason.LENGTH for handle in handles)
    b.check_clean()
