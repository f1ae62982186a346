"""Requests stopped or failing at the worst moments: nothing leaks, nothing false is kept, the next one is right."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ninfer.errors import EngineFailure, RequestError, RequestErrorKind
from ninfer.kernels.sampling import SampleFault
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.loop import Purpose
from ninfer.runtime.core.stats import Availability
from ninfer.runtime.instance import ModelInstance
from ninfer.runtime.program.rounds import DecodeRound
from ninfer.types import EngineOptions, FinishReason, GenerationRequest, TokenPrompt
from tests.e2e.conftest import Models
from tests.e2e.stepped import Cold, Stepped, answer, greedy, open_instance
from tests.e2e.test_reuse import ids
from tests.runtime.simulated import axes

OPTIONS = EngineOptions(
    threads=1,
    max_context=512,
    kv_capacity=16,
    prefill_chunk=128,
    max_concurrency=2,
    max_pending_requests=32,
    host_kv_mib=1,
    host_state_slots=8,
)
OPS = {
    "text": ("embedding", "rmsnorm", "linear"),
    "gdn": ("conv_silu", "gated_rmsnorm", "gdn", "gdn_gates", "linear", "projections"),
    "attention": ("gated_sigmoid", "linear", "paged_attention", "projections", "qk_norm_rope_append"),
    "mlp": ("gate_up_swiglu", "linear"),
}
SITES = [(f"ninfer.models.qwen3_5.{module}", op) for module, ops in OPS.items() for op in ops] + [
    ("ninfer.runtime.program.units", op) for op in ("build_batch", "sample", "log_softmax_gather", "top_logprobs")
]


@pytest.fixture(scope="module")
def instance(models: Models) -> ModelInstance:
    return open_instance(models("small", "q8")[1])


MOE_SITES = [
    ("ninfer.models.qwen3_5.moe", op)
    for op in ("gate_up_swiglu", "linear", "moe_experts", "moe_route", "moe_shared_add")
]


@pytest.fixture(scope="module")
def experts(models: Models) -> ModelInstance:
    return open_instance(models("moe", "q8")[1])


@pytest.fixture(scope="module")
def cold(instance: ModelInstance) -> Cold:
    return Cold(instance, OPTIONS)


def with_slots(slots: int) -> EngineOptions:
    return replace(OPTIONS, device_state_slots=slots, host_state_slots=8 if slots else 0)


# --- cancellation -----------------------------------------------------------------------------------------


def during(engine: Stepped, method: str, number: int, act: Callable[[], None]) -> None:
    """Call `act` in the middle of the executor's `number`-th unit of this kind."""
    executor = engine.program._executor
    original, calls = getattr(executor, method), [0]

    def unit(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            act()
        return original(*arguments)

    setattr(executor, method, unit)


PROMPT = ids(21, 330)
MOMENTS = {
    "first chunk": ("consume", 1),
    "later chunk": ("consume", 2),
    "first token": ("choose", 1),
    "decode": ("choose", 3),
}

KEPT = {"first chunk": 0, "later chunk": 128, "first token": 329, "decode": 329}
"""The longest checkpoint that was already made when the cancel took effect. Cancelling makes none."""


@pytest.mark.parametrize("slots", [0, 8])
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_cancelled_anywhere_and_tried_again(instance: ModelInstance, cold: Cold, slots: int, moment: str) -> None:
    engine = Stepped(instance, with_slots(slots))
    start = axes(engine.program)
    longer = greedy(TokenPrompt((*PROMPT, *ids(22, 60))), 4)
    handles: list[GenerationHandle] = []
    during(engine, *MOMENTS[moment], lambda: handles[0].cancel())
    handles.append(engine.submit(greedy(TokenPrompt(PROMPT), 6)))
    engine.settle()
    result = handles[0].result(0)
    assert result.finish_reason is FinishReason.CANCELLED
    assert result.token_ids == cold(greedy(TokenPrompt(PROMPT), 6))[0][: len(result.token_ids)]
    assert len(result.token_ids) == (2 if moment == "decode" else 0)
    kept = [len(c.identity.tokens) for c in engine.program._stores.checkpoints.values()]
    assert max(kept, default=0) == (KEPT[moment] if slots else 0)
    if slots == 0:
        assert axes(engine.program) == start
    for request in (greedy(TokenPrompt(PROMPT), 6), longer):
        expected = engine.usable(request.prompt)
        got, reuse = engine.ask(request)
        assert got == cold(request)
        assert reuse.frontier == expected
    engine.core.close()
    assert axes(engine.program) == start


def offloaded(instance: ModelInstance) -> tuple[Stepped, GenerationRequest]:
    """An Engine whose first history lies on the host only, and a request that goes on from it."""
    options = replace(OPTIONS, max_concurrency=1, kv_capacity=8, device_state_slots=4)
    engine = Stepped(instance, options)
    first = ids(31, 200)
    engine.ask(greedy(TokenPrompt(first), 3, "a"))
    engine.ask(greedy(TokenPrompt(ids(32, 490)), 5, "b"))
    facts = [engine.program.facts(handle) for handle in engine.program._stores.checkpoints]
    assert any(fact.on_host and not fact.on_device and fact.frontier > 190 for fact in facts)
    layers = engine.program._executor._state
    page = sum(pool.bytes_per_page for pool in layers.kv)
    image = sum(t[0].nbytes for layer in layers.gdn for t in (layer.state, layer.history))
    assert all(fact.restore_bytes == -(-fact.frontier // 64) * page + image for fact in facts)
    return engine, greedy(TokenPrompt((*first, *ids(33, 20))), 5, "a")


def transition(engine: Stepped) -> Purpose | None:
    """What the open resource transaction is for."""
    opened = engine.core._loop._transition
    return None if opened is None else opened.purpose


def test_cancelled_while_a_transfer_runs(instance: ModelInstance, cold: Cold) -> None:
    engine, request = offloaded(instance)
    handle = engine.submit(request)
    engine.run_until(lambda: transition(engine) is Purpose.MATERIALISATION)
    handle.cancel()
    engine.settle()
    assert handle.result(0).finish_reason is FinishReason.CANCELLED
    assert handle.result(0).usage.reused_tokens == 0
    assert axes(engine.program)["lanes"][0] == 0
    assert axes(engine.program)["kv_pages"][1] == 0
    got, reuse = engine.ask(request)
    assert got == cold(request)
    assert reuse.frontier > 190


def test_a_history_that_was_on_the_host_is_the_same_history(instance: ModelInstance, cold: Cold) -> None:
    engine, request = offloaded(instance)
    got, reuse = engine.ask(request)
    assert got == cold(request)
    assert reuse.frontier > 190


# --- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [0, 8])
def test_prompts_and_answers_up_to_the_context_limit(instance: ModelInstance, cold: Cold, slots: int) -> None:
    engine = Stepped(instance, replace(with_slots(slots), max_context=256, kv_capacity=8))
    full = ids(41, 256)
    for prompt, new in ((full[:255], 1), (full[:255], None), (full[:200], 56), (full[:1], 4)):
        request = greedy(TokenPrompt(prompt), 1)
        got, _ = engine.ask(replace(request, max_new_tokens=new))
        assert len(got[0]) == (256 - len(prompt) if new is None else new)
        assert got[0][:1] == cold(request)[0]
    for prompt, new in ((full, 1), (full, None), ((*full, 7), 1), (full[:200], 57), (full[:255], 2)):
        with pytest.raises(RequestError) as refused:
            engine.submit(replace(greedy(TokenPrompt(prompt)), max_new_tokens=new))
        assert refused.value.kind is RequestErrorKind.CONTEXT_EXCEEDED
    nothing = engine.submit(greedy(TokenPrompt(full[:100]), 0))
    assert nothing.finished
    assert nothing.result(0).token_ids == ()
    assert nothing.result(0).finish_reason is FinishReason.LENGTH


def test_a_full_queue_with_deadlines(instance: ModelInstance, cold: Cold) -> None:
    engine = Stepped(instance, OPTIONS)
    running = [greedy(TokenPrompt(ids(50 + i, 70)), 8) for i in range(2)]
    active = [engine.submit(request) for request in running]
    engine.run_until(lambda: engine.core.stats().active == 2)
    queued = [engine.submit(replace(greedy(TokenPrompt(ids(60 + i, 9)), 2), deadline=1.0 + i)) for i in range(32)]
    with pytest.raises(RequestError) as refused:
        engine.submit(running[0])
    assert refused.value.kind is RequestErrorKind.OVERLOADED
    engine.clock.advance(20.5)
    engine.step()
    assert [handle.finished for handle in queued] == [True] * 20 + [False] * 12
    engine.settle()
    for number, handle in enumerate(queued):
        reason = handle.result(0).finish_reason
        assert reason is (FinishReason.DEADLINE if number < 20 else FinishReason.LENGTH)
    assert [answer(handle.result(0)) for handle in active] == [cold(request) for request in running]
    assert engine.submit(running[0]) is not None


# --- faults -----------------------------------------------------------------------------------------------


@dataclass
class Fault:
    """Makes one call of a function of a module or class raise after it has done its work, as soon as it is armed."""

    monkeypatch: pytest.MonkeyPatch
    owner: Any
    name: str
    armed: bool = False

    def __post_init__(self) -> None:
        name, original = self.name, getattr(self.owner, self.name)

        def op(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            if self.armed:
                self.armed = False
                raise RuntimeError(f"injected into {name}")
            return result

        self.monkeypatch.setattr(self.owner, name, op)


def named(sites: list[tuple[str, str]]) -> list[str]:
    return [".".join((module.split(".")[-1], op)) for module, op in sites]


@pytest.mark.parametrize("site", SITES, ids=named(SITES))
def test_a_raising_op_costs_only_the_unit_it_is_in(
    instance: ModelInstance, cold: Cold, monkeypatch: pytest.MonkeyPatch, site: tuple[str, str]
) -> None:
    check_op(instance, cold, monkeypatch, site)


@pytest.mark.parametrize("site", MOE_SITES, ids=named(MOE_SITES))
def test_a_raising_expert_op_costs_only_the_unit_it_is_in(
    experts: ModelInstance, monkeypatch: pytest.MonkeyPatch, site: tuple[str, str]
) -> None:
    check_op(experts, Cold(experts, OPTIONS), monkeypatch, site)


def check_op(instance: ModelInstance, cold: Cold, monkeypatch: pytest.MonkeyPatch, site: tuple[str, str]) -> None:
    """First in a prefill while another request decodes, then in a decode round; both run op by op, unrecorded."""
    bystander, victim = greedy(TokenPrompt(ids(71, 20)), 8), greedy(TokenPrompt(ids(72, 150)), 3)
    expected = cold(bystander), cold(victim)
    unrecorded = replace(instance, compiled=False)
    engine, fault = Stepped(unrecorded, with_slots(8)), Fault(monkeypatch, importlib.import_module(site[0]), site[1])
    other = engine.submit(bystander)
    engine.run_until(lambda: engine.core.stats().decode_rounds > 0)
    doomed = engine.submit(victim)
    while not doomed.finished:
        fault.armed = engine.core._loop._scheduler._decoded_last
        engine.step()
    fault.armed = False
    with pytest.raises(RequestError, match="injected into") as ended:
        doomed.result(0)
    assert ended.value.kind is RequestErrorKind.FAILED
    engine.settle()
    assert answer(other.result(0)) == expected[0]
    assert engine.ask(victim)[0] == expected[1]

    check_decode(engine, fault, (bystander, victim), expected)


@pytest.mark.parametrize("method", ["__init__", "run"])
def test_a_recorded_round_that_raises_costs_only_itself(
    instance: ModelInstance, cold: Cold, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """While it is recorded, which is then done again, and after all its kernels have run."""
    if not instance.compiled:
        pytest.skip("no C++ compiler here")
    bystander, victim = greedy(TokenPrompt(ids(71, 20)), 8), greedy(TokenPrompt(ids(72, 150)), 3)
    expected = cold(bystander), cold(victim)
    engine, fault = Stepped(instance, with_slots(8)), Fault(monkeypatch, DecodeRound, method)
    if method == "__init__":
        fault.armed = True
        handle = engine.submit(victim)
        engine.settle()
        with pytest.raises(RequestError, match="injected into"):
            handle.result(0)
        assert engine.ask(victim)[0] == expected[1]
    else:
        check_decode(engine, fault, (bystander, victim), expected)


def check_decode(
    engine: Stepped, fault: Fault, requests: tuple[GenerationRequest, GenerationRequest], expected: tuple[Any, Any]
) -> None:
    """The second of the requests meets the fault while it decodes alone; then both are answered as ever."""
    bystander, victim = requests
    decoding = engine.submit(victim)
    rounds = engine.core.stats().decode_rounds
    engine.run_until(lambda: engine.core.stats().decode_rounds > rounds)
    fault.armed = True
    engine.settle()
    assert not fault.armed
    with pytest.raises(RequestError, match="injected into"):
        decoding.result(0)
    assert engine.ask(victim)[0] == expected[1]
    assert engine.ask(bystander)[0] == expected[0]


def test_a_row_without_a_choosable_token_ends_alone(
    instance: ModelInstance, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is rolled back and run again without the row at fault."""
    requests = [greedy(TokenPrompt(ids(75 + i, 40)), 6) for i in range(2)]
    engine, units = Stepped(instance, with_slots(8)), importlib.import_module("ninfer.runtime.program.units")
    handles = [engine.submit(request) for request in requests]
    engine.run_until(lambda: engine.core.stats().decode_rows == engine.core.stats().decode_rounds + 1)
    original, failed = units.sample, [False]

    def sample(logits: Any, *arguments: Any) -> None:
        if len(logits) == 2 and not failed[0]:
            failed[0] = True
            raise SampleFault((1,))
        original(logits, *arguments)

    monkeypatch.setattr(units, "sample", sample)
    engine.settle()
    assert answer(handles[0].result(0)) == cold(requests[0])
    with pytest.raises(RequestError, match="no token can be chosen: sample: row 1"):
        handles[1].result(0)
    assert engine.ask(requests[1])[0] == cold(requests[1])


@pytest.mark.parametrize("copy", ["copy_image", "unpack_page", "load_image"])
def test_a_raising_copy_ends_the_engine_and_answers_everyone(
    instance: ModelInstance, monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    """A copy that failed half-way left physical state that nobody can explain."""
    engine, request = offloaded(instance)
    transfers = engine.program._stores.transfers

    def broken(*_: object) -> None:
        raise OSError("injected")

    monkeypatch.setattr(transfers, copy, broken)
    handles = [engine.submit(request), engine.submit(greedy(TokenPrompt(ids(80, 10)), 2))]
    engine.run_until(lambda: engine.core.availability is Availability.FAILED)
    for handle in handles:
        with pytest.raises(EngineFailure, match="injected"):
            handle.result(0)
    with pytest.raises(EngineFailure):
        engine.submit(request)
    assert not engine.program._stores.sequences
    assert not engine.program._stores.checkpoints
