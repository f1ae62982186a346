"""An Engine on the emulated CUDA device: several requests together, prefix reuse, cancelling, scoring, no graphs.

Greedy answers are judged by the CPU's logits for the same history: each token must be the best there, or as good as
within `tolerances.WHOLE_MODEL_BF16`, since linears round activations to bf16 for the tensor cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ninfer.engine import Engine, Scorer
from ninfer.kernels import jit
from ninfer.kernels.jit import using
from ninfer.kernels.kv_cache import KvCodec
from ninfer.kernels.placement import choose
from ninfer.kernels.tolerances import WHOLE_MODEL_BF16
from ninfer.models.qwen3_5.state import allocate_state
from ninfer.runtime.instance import ModelInstance
from ninfer.runtime.program.rounds import DecodeRound, taped
from ninfer.types import (
    EngineOptions,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    KvDtype,
    Sampling,
    StopConditions,
    TokenPrompt,
)
from tests.e2e.conftest import Models
from tests.e2e.emulated import Unwarmed
from tests.e2e.test_cuda import IMAGES, PAGES, Runner, bound, tokens
from tests.kernels.emulator import NEEDS_EMULATOR

pytestmark = NEEDS_EMULATOR

OPTIONS = EngineOptions(
    device="cuda", threads=1, max_context=256, kv_capacity=24, prefill_chunk=128, max_concurrency=3, host_kv_mib=1
)
WITHOUT_EFFECT = ("view", "slice", "select", "split", "expand", "unsqueeze", "transpose", "detach", "alias")


@pytest.fixture(scope="module")
def artifact(models: Models) -> Path:
    torch.set_num_threads(1)
    return models("untied", "q8")[1]


@pytest.fixture
def emulated(artifact: Path) -> Iterator[Path]:
    """The artifact, while kernels run on the emulated device."""
    with using(Unwarmed("fast")):
        yield artifact


def greedy(history: tuple[int, ...], new: int = 5) -> GenerationRequest:
    return GenerationRequest(
        TokenPrompt(history), new, Sampling.greedy(), StopConditions(ignore_eos=True), top_logprobs=2
    )


PROMPTS = [tokens(seed, count) for seed, count in ((1, 20), (2, 70), (3, 150))]


@dataclass
class Judge:
    """The same model on the CPU."""

    path: Path

    @cached_property
    def instance(self) -> ModelInstance:
        return ModelInstance.open(self.path)

    def check(self, prompt: tuple[int, ...], result: GenerationResult) -> None:
        """Every token of an answer is a best one, and has about the probability that was reported."""
        history = (*prompt, *result.token_ids)
        runner = Runner(self.instance, KvCodec.BF16, taped)
        row = runner.open(history)
        runner.prefill(row, len(history))
        logits, off = row.logits[0], bound(row.logits[0], WHOLE_MODEL_BF16)
        logprobs = logits.log_softmax(dim=1)
        logits[:, list(self.instance.frontend.unselectable_token_ids())] = -torch.inf
        for index, token in enumerate(result.token_ids, len(prompt) - 1):
            best = logits[index].max()
            assert best - logits[index, token] <= 2 * off, f"token {index} of the history is not the CPU's"
        for index, entry in enumerate(result.logprobs, len(prompt) - 1):
            assert abs(entry.logprob - logprobs[index, entry.token_id].item()) <= 2 * off


def test_answers_are_the_cpus_whoever_else_is_answered(artifact: Path) -> None:
    """Three requests together, then one of them alone: the same tokens and log-probabilities to the last bit."""
    with using(Unwarmed("fast")), Engine(artifact, OPTIONS) as engine:
        assert engine.info.device == "cuda:0"
        handles = [engine.generate(greedy(prompt)) for prompt in PROMPTS]
        together = [handle.result() for handle in handles]
        assert engine.stats().decode_rows > engine.stats().decode_rounds, "nothing was decoded together"
    with using(Unwarmed("fast")), Engine(artifact, OPTIONS) as engine:
        alone = engine.generate(greedy(PROMPTS[1])).result()
    assert (alone.token_ids, alone.logprobs) == (together[1].token_ids, together[1].logprobs)
    judge = Judge(artifact)
    for prompt, result in zip(PROMPTS, together, strict=True):
        assert len(result.token_ids) == 5
        judge.check(prompt, result)


def test_a_prefix_is_reused_and_a_cancelled_request_leaves_nothing(artifact: Path) -> None:
    with using(Unwarmed("fast")), Engine(artifact, replace(OPTIONS, kv_capacity=8, max_concurrency=1)) as engine:
        first = engine.generate(greedy(PROMPTS[2])).result()
        longer = (*PROMPTS[2], *first.token_ids, *tokens(4, 30))
        cancelled = engine.generate(greedy(longer, 40))
        for _ in range(3):
            cancelled.next_event()
        cancelled.cancel()
        stopped = cancelled.result()
        again = engine.generate(greedy(longer)).result()
        other = engine.generate(greedy(tokens(5, 240))).result()  # pushes the others out to the host
        back = engine.generate(greedy(longer)).result()
        stats = engine.stats()
    assert stopped.finish_reason is FinishReason.CANCELLED
    assert stopped.token_ids == again.token_ids[: len(stopped.token_ids)] or len(stopped.token_ids) > 5
    assert first.usage.reused_tokens == 0
    assert stopped.usage.reused_tokens >= 128
    assert min(again.usage.reused_tokens, back.usage.reused_tokens) >= 128
    assert sum(stats.reuse_hits.values()) >= 3
    judge = Judge(artifact)
    for prompt, result in ((PROMPTS[2], first), (longer, again), (tokens(5, 240), other), (longer, back)):
        judge.check(prompt, result)


def test_graphs_change_nothing(emulated: Path) -> None:
    """Recorded rounds and launches one by one; sampled, so that a difference anywhere would show."""
    sampling = Sampling(temperature=0.9, top_k=40, presence_penalty=0.5, repetition_penalty=1.2, seed=5)
    asked = [replace(greedy(prompt), sampling=sampling) for prompt in PROMPTS[:2]]
    answers = []
    for graphs in (True, False):
        with Engine(emulated, replace(OPTIONS, kv_dtype=KvDtype.INT8, cuda_graph=graphs)) as engine:
            handles = [engine.generate(request) for request in asked]
            answers.append([(handle.result().token_ids, handle.result().logprobs) for handle in handles])
    assert answers[0] == answers[1]


def test_scores_are_the_cpus(artifact: Path) -> None:
    text = [("a", "The quick brown fox jumps over the lazy dog. " * 3)]

    def score(device: str) -> float:
        with Scorer(artifact, EngineOptions(device=device, threads=1), context=64, stride=32) as scorer:
            return scorer.score(text).overall.mean_nll

    with using(Unwarmed("fast")):
        ours = score("cuda")
    assert ours == pytest.approx(score("cpu"), abs=0.02)


class _OnlyLaunches(TorchDispatchMode):
    """Fails where torch computes, allocates or reads something: a graph would not repeat it, or it would wait."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert any(word in name for word in WITHOUT_EFFECT), f"torch does {name}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["untied", "moe"])
def test_a_round_is_launches_and_nothing_else(models: Models, kind: str) -> None:
    """From its second run on it allocates nothing and reads nothing back, so a decode round never waits for itself."""
    with using(Unwarmed("fast")):
        instance = ModelInstance.open(models(kind, "q8")[1], placement=choose("cuda"))
        state = allocate_state(instance.config.text, KvCodec.BF16, PAGES, IMAGES, instance.placement)
        made = DecodeRound(instance.model, state, 2, PAGES, jit.record, instance.placement)
        made._launch()
        with _OnlyLaunches():
            made._launch()
