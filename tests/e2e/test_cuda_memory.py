"""Nothing of the host's is handed to a kernel, and a kernel that cannot run costs what it must and no more."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from ninfer.errors import CudaError, RequestError
from ninfer.kernels import jit
from ninfer.kernels.jit import CudaSource, Launch, using
from ninfer.kernels.kv_cache import KvCodec
from ninfer.kernels.placement import Cuda, choose
from ninfer.models.qwen3_5.workspace import op_workspace_bytes
from ninfer.runtime.core.stats import Availability
from ninfer.runtime.instance import ModelInstance
from ninfer.types import EngineOptions, KvDtype, Sampling, TokenPrompt
from tests.e2e.conftest import Models
from tests.e2e.emulated import Unwarmed
from tests.e2e.stepped import Stepped, greedy
from tests.e2e.test_cuda import Runner, tokens
from tests.e2e.walled import walled
from tests.kernels.emulator import NEEDS_EMULATOR

pytestmark = NEEDS_EMULATOR

BOUNDED = ("paged_attention", "gdn", "sample", "sample rows", "linear segments", "log_softmax_gather", "argmax")
SLACK = 1 << 17
"""Rounding of widths to whole units, which tiny models notice."""
OPTIONS = EngineOptions(
    threads=1,
    max_context=256,
    kv_capacity=8,
    kv_dtype=KvDtype.INT8,
    prefill_chunk=128,
    max_concurrency=2,
    device_state_slots=4,
    host_kv_mib=1,
    host_state_slots=4,
)


@pytest.fixture(scope="module")
def artifact(models: Models) -> Path:
    torch.set_num_threads(1)
    return models("small", "q8")[1]


def open_there(artifact: Path) -> ModelInstance:
    return ModelInstance.open(artifact, placement=Cuda.at(torch.device("cpu")))


@pytest.mark.parametrize("kind", ["small", "moe"])
def test_kernels_touch_device_memory_only(models: Models, kind: str) -> None:
    """Checked access by access: a prefill, recorded rounds of one and two rows, and the same again from the record."""
    artifact = models(kind, "q8")[1]
    with walled("check"):
        runner = Runner(open_there(artifact), KvCodec.BF16, jit.record)
        rows = [runner.open(tokens(seed, 9)) for seed in range(2)]
        for row in rows:
            runner.prefill(row, 5)
        for members in (rows, rows[:1], rows, rows[:1]):
            runner.decode(members)
        assert all(not torch.cat(row.logits).isnan().any() for row in rows)


def test_an_engine_keeps_the_memories_apart(artifact: Path) -> None:
    """Sampling with every penalty, log-probabilities, checkpoints, and histories that go to the host and come back."""
    with walled():
        engine = Stepped(open_there(artifact), replace(OPTIONS, max_concurrency=1, kv_capacity=4))
        first, other = tokens(1, 150), tokens(2, 240)
        every = Sampling(0.8, 0.95, 20, 0.01, 0.5, 0.2, 1.1, 7)
        engine.ask(greedy(TokenPrompt(first), session="a"))
        engine.ask(replace(greedy(TokenPrompt(other), 8, "b"), sampling=every))
        facts = [engine.program.facts(handle) for handle in engine.program._stores.checkpoints]
        assert any(fact.on_host and not fact.on_device for fact in facts)
        _, reuse = engine.ask(greedy(TokenPrompt((*first, *tokens(3, 20))), session="a"))
        assert reuse.frontier >= 128


@pytest.mark.parametrize("kind", ["small", "moe"])
def test_ops_keep_no_more_scratch_memory_than_was_planned(models: Models, kind: str) -> None:
    """Of what grows with a chunk: apart from attention, the recurrence and sampling, which are bounded."""
    count = 120
    with using(Unwarmed("fast")):
        instance = ModelInstance.open(models(kind, "q8")[1], placement=choose("cuda"))
        runner = Runner(instance, KvCodec.BF16, jit.record)
        runner.prefill(runner.open(tokens(1, count)), count)
        buffers = jit._Active.workspaces._buffers
        grown = {purpose: len(buffer) for (_, purpose), buffer in buffers.items() if purpose not in BOUNDED}
    assert grown, "no op took any"
    assert sum(grown.values()) <= op_workspace_bytes(instance.config.text, count) + SLACK, grown


@dataclass
class Failure:
    """When launches fail: the next one of a kernel whose name begins so, before it runs."""

    kernel: str | None = None


class Failing(Unwarmed):
    """Refuses one launch."""

    def __init__(self, failure: Failure) -> None:
        super().__init__("fast")
        self._failure = failure

    def launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None:
        if self._failure.kernel is not None and kernel.startswith(self._failure.kernel):
            self._failure.kernel = None
            raise CudaError(f"{kernel} failed on the GPU: injected")
        super().launch(source, kernel, how, args, keep)


@pytest.mark.parametrize("when", ["prefill", "recording", "round"])
def test_a_launch_that_fails_costs_only_its_unit(artifact: Path, when: str) -> None:
    """The request ends with an error that names the kernel; asked again, it is answered as if nothing had happened."""
    failure = Failure()
    with using(Failing(failure)):
        instance = ModelInstance.open(artifact, placement=choose("cuda"))
        request = greedy(TokenPrompt(tokens(5, 40)), 6)
        options = replace(OPTIONS, device_state_slots=0, cuda_graph=when != "round")
        expected, _ = Stepped(instance, options).ask(request)
        engine = Stepped(instance, options)
        doomed = engine.submit(request)
        if when == "round":
            engine.run_until(lambda: engine.core.stats().decode_rounds > 1)
        elif when == "recording":
            engine.run_until(lambda: engine.core.stats().prefill_units > 0)
        failure.kernel = "rmsnorm"
        engine.settle()
        with pytest.raises(RequestError, match=r"rmsnorm.* failed on the GPU: injected"):
            doomed.result(0)
        assert engine.core.availability is Availability.READY
        assert engine.ask(request)[0] == expected
