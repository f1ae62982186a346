"""Whole models against transformers in fp32: log-probabilities, greedy choices and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ninfer.artifact.reader import ArtifactReader
from ninfer.engine import Engine, Scorer
from ninfer.frontend import Frontend
from ninfer.models.qwen3_5.inventory import RESOURCE_ROLES
from ninfer.types import (
    EngineOptions,
    GenerationResult,
    KvDtype,
    Sampling,
    StopConditions,
    TokenPrompt,
)
from tests.checkpoints import VOCAB_ROWS, reference_model
from tests.e2e.conftest import Models
from tests.e2e.decoded import decoded_model

TOLERANCE = 1e-3
PROMPTS = (1, 63, 64, 65, 300)
STEPS = 64
TEXT = "The quick brown fox jumps over the lazy dog. Der schnelle braune Fuchs! 北京的天气怎么样？ " * 12


def prompt(length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(length)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


def generate(artifact: Path, chunk: int, lengths: Sequence[int] = PROMPTS) -> list[GenerationResult]:
    """Greedy answers to all prompts at once, so that decode runs in batches."""
    options = EngineOptions(
        threads=1,
        kv_dtype=KvDtype.FP32,
        max_context=512,
        max_concurrency=len(lengths),
        kv_capacity=8 * len(lengths),
        prefill_chunk=chunk,
    )
    with Engine(artifact, options) as engine:
        handles = [
            engine.generate(
                TokenPrompt(prompt(length)),
                max_new_tokens=STEPS,
                sampling=Sampling.greedy(),
                stops=StopConditions(ignore_eos=True),
                top_logprobs=0,
            )
            for length in lengths
        ]
        return [handle.result() for handle in handles]


def selectable(artifact: Path) -> torch.Tensor:
    """bool[V]: the tokens that may be chosen."""
    with ArtifactReader.open(artifact) as reader:
        frontend = Frontend({role: reader.resource(role) for role in RESOURCE_ROLES["text"]}, VOCAB_ROWS)
    mask = torch.ones(VOCAB_ROWS, dtype=torch.bool)
    mask[list(frontend.unselectable_token_ids())] = False
    return mask


def check(results: Sequence[GenerationResult], model: torch.nn.Module, mask: torch.Tensor) -> None:
    """Every token is the model's own greedy choice, with its log-probability."""
    for length, result in zip(PROMPTS, results, strict=True):
        tokens = prompt(length) + result.token_ids
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0, length - 1 : -1].log_softmax(-1)
        assert expected.masked_fill(~mask, -math.inf).argmax(-1).tolist() == list(result.token_ids)
        got = torch.tensor([entry.logprob for entry in result.logprobs])
        torch.testing.assert_close(
            got, expected.gather(1, torch.tensor(result.token_ids)[:, None])[:, 0], atol=TOLERANCE, rtol=0
        )


@pytest.mark.parametrize("kind", ["tied", "untied", "moe"])
@pytest.mark.parametrize("chunk", [128, 256, 384])
def test_bf16_recipe_equals_transformers(models: Models, kind: str, chunk: int) -> None:
    checkpoint, artifact = models(kind, "bf16")
    check(generate(artifact, chunk), reference_model(checkpoint), selectable(artifact))


@pytest.mark.parametrize("kind", ["tied", "moe"])
@pytest.mark.parametrize("recipe", ["q8", "groupwise", "fp8"])
def test_quantised_recipes_equal_transformers_on_the_decoded_weights(models: Models, kind: str, recipe: str) -> None:
    checkpoint, artifact = models(kind, recipe)
    check(generate(artifact, 128), decoded_model(checkpoint, artifact), selectable(artifact))


def windowed_nll(model: torch.nn.Module, tokens: Sequence[int], context: int, stride: int) -> list[float]:
    """transformers' usual sliding-window computation: overlapping windows, each token scored once."""
    losses: list[float] = []
    scored = 1
    for end in [min(context, len(tokens)), *range(context + stride, len(tokens) + stride, stride)]:
        end = min(end, len(tokens))
        if end <= scored and losses:
            break
        begin = 0 if not losses else scored - (context - stride)
        with torch.no_grad():
            logits = model(torch.tensor([tokens[begin:end]])).logits[0, :-1].log_softmax(-1)
        targets = torch.tensor(tokens[begin + 1 : end])
        losses += (-logits.gather(1, targets[:, None])[scored - begin - 1 :, 0]).tolist()
        scored = end
    return losses


@pytest.mark.parametrize(("context", "stride"), [(64, 32), (100, 37), (4096, 2048)])
def test_score_equals_windowed_transformers(models: Models, context: int, stride: int) -> None:
    checkpoint, artifact = models("tied", "bf16")
    logprobs: list[float] = []
    with Scorer(
        artifact, EngineOptions(threads=1, kv_dtype=KvDtype.FP32, prefill_chunk=128), context, stride
    ) as scorer:
        report = scorer.score([("text", TEXT)], on_token=lambda score: logprobs.append(score.logprob))
        tokens = scorer.encode(TEXT)
    expected = windowed_nll(reference_model(checkpoint), tokens, context, stride)
    assert report.overall.scored_tokens == len(tokens) - 1 == len(expected)
    torch.testing.assert_close(-torch.tensor(logprobs), torch.tensor(expected), atol=TOLERANCE, rtol=0)
    assert report.overall.mean_nll == pytest.approx(sum(expected) / len(expected), abs=TOLERANCE)
    assert report.overall.perplexity == pytest.approx(math.exp(sum(expected) / len(expected)), rel=TOLERANCE)
