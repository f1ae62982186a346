"""Sampling presets and validation."""

from __future__ import annotations

import pytest

from ninfer.errors import RequestError
from ninfer.frontend import Frontend
from ninfer.types import GenerationRequest, PreparedPrompt, ResolvedSampling, Sampling, TextPrompt
from tests.frontend.models import small_frontend

OFFICIAL: dict[str, object] = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "do_sample": True}


def resolve(frontend: Frontend, sampling: Sampling, thinking: bool = False) -> ResolvedSampling:
    prompt = PreparedPrompt((0,), None, thinking)
    return frontend.resolve_sampling(GenerationRequest(TextPrompt("x"), sampling=sampling), prompt, lambda: 7)


@pytest.mark.parametrize("generation", [{}, OFFICIAL])
def test_presets_by_mode(generation: dict[str, object]) -> None:
    dense, moe = (small_frontend(is_moe=is_moe, **generation) for is_moe in (False, True))
    thinking = ResolvedSampling(1.0, 0.95, 20, 0.0, 0.0, 0.0, 1.0, 7)
    plain = ResolvedSampling(0.7, 0.80, 20, 0.0, 1.5, 0.0, 1.0, 7)
    assert resolve(dense, Sampling(), thinking=True) == thinking
    assert resolve(dense, Sampling()) == resolve(moe, Sampling()) == plain
    assert resolve(moe, Sampling(), thinking=True) == ResolvedSampling(1.0, 0.95, 20, 0.0, 1.5, 0.0, 1.0, 7)


def test_a_checkpoints_own_values_hold_in_both_modes() -> None:
    frontend = small_frontend(temperature=0.3, top_k=20, min_p=0.1)
    for thinking in (False, True):
        got = resolve(frontend, Sampling(), thinking)
        assert (got.temperature, got.top_k, got.min_p) == (0.3, 20, 0.1)
    assert resolve(frontend, Sampling(temperature=0.9)).temperature == 0.9


def test_greedy_is_free_of_presets(frontend: Frontend) -> None:
    neutral = ResolvedSampling(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, 7)
    assert resolve(frontend, Sampling(temperature=0)) == neutral
    assert resolve(small_frontend(do_sample=False), Sampling()) == neutral
    assert resolve(frontend, Sampling(temperature=0, presence_penalty=0.5)).presence_penalty == 0.5
    assert resolve(frontend, Sampling.greedy()).seed == 0


def test_a_seed_is_drawn_only_when_none_is_given(frontend: Frontend) -> None:
    assert resolve(frontend, Sampling(seed=2**64 - 1)).seed == 2**64 - 1
    request = GenerationRequest(TextPrompt("x"))
    seeds = {frontend.resolve_sampling(request, PreparedPrompt((0,), None, False)).seed for _ in range(4)}
    assert len(seeds) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_value_out_of_its_domain_is_refused_by_name(frontend: Frontend, field: str, value: float) -> None:
    with pytest.raises(RequestError, match=rf"sampling\.{field}: .* it must be"):
        resolve(frontend, Sampling(**{field: value}))
