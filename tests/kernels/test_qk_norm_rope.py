"""qk_norm_rope against its oracle and against transformers; rows that do not depend on the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from ninfer.kernels.qk_norm_rope import IMPLEMENTATIONS, RopeSpec, compiled_cpu, oracle, qk_norm_rope
from ninfer.kernels.qk_norm_rope.cases import CASES, Case
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ROTATION
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, routes_here, same_bits

EPS = 1e-6


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _positions(case: Case) -> torch.Tensor:
    generator = torch.Generator().manual_seed(case.tokens)
    return torch.randint(case.first, case.first + case.span, (3, case.tokens), generator=generator).int()


def _frequencies(case: Case) -> np.ndarray:
    exponents = (np.arange(0, case.rotary_dim, 2) / case.rotary_dim).astype(np.float32)
    powers = (np.float64(case.theta) ** exponents.astype(np.float64)).astype(np.float32)
    return np.float32(1) / powers


@pytest.mark.parametrize("case", CASES["qk_norm_rope"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    q, k = _normal(case.tokens, case.heads, case.head_dim), _normal(case.tokens, case.kv_heads, case.head_dim)
    q_weight, k_weight = _normal(case.head_dim, seed=1), _normal(case.head_dim, seed=2)
    positions, rope = _positions(case), RopeSpec(case.theta, case.rotary_dim, case.sections)
    q_out, k_out = poisoned(*q.shape), poisoned(*k.shape)
    turned = positions.numpy(), _frequencies(case), case.sections
    trial = Trial(
        {"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "positions": positions},
        {"q": q_out, "k": k_out},
        lambda route: IMPLEMENTATIONS["qk_norm_rope"][route](
            q, k, q_weight, k_weight, EPS, positions, rope, q_out, k_out
        ),
        {
            "q": oracle.qk_norm_rope(q.numpy(), q_weight.numpy(), EPS, *turned),
            "k": oracle.qk_norm_rope(k.numpy(), k_weight.numpy(), EPS, *turned),
        },
        {"q": ROTATION, "k": ROTATION},
    )
    conform(trial, routes_here(IMPLEMENTATIONS["qk_norm_rope"], compiled_cpu.SOURCE))


@pytest.mark.parametrize("theta", [1e4, 1e6, 1e7])
def test_agrees_with_transformers_up_to_the_longest_context(theta: float) -> None:
    config = Qwen3_5TextConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )
    positions = torch.tensor([[0, 3, 1000, 99999, 262143], [0, 5, 7, 4, 262143], [0, 9, 2, 99999, 1]])
    q, k = _normal(5, 2, 256), _normal(5, 1, 256, seed=1)
    weights = _normal(256, seed=2), _normal(256, seed=3)
    normed = []
    for x, weight in zip((q, k), weights, strict=True):
        norm = Qwen3_5RMSNorm(256, eps=EPS)
        norm.weight.data.copy_(weight)
        normed.append(norm(x).transpose(0, 1)[None])
    cosines, sines = Qwen3_5TextRotaryEmbedding(config)(q, positions[:, None])
    wanted = apply_rotary_pos_emb(normed[0], normed[1], cosines, sines)
    outs = poisoned(5, 2, 256), poisoned(5, 1, 256)
    qk_norm_rope(q, k, *weights, EPS, positions.int(), RopeSpec(theta, 64, (11, 11, 10)), *outs)
    for got, want in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want[0].transpose(0, 1).detach().numpy(), rtol=1e-5, atol=4e-6)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("heads", "head_dim", "rotary"), [(1, 64, 16), (6, 64, 64), (3, 256, 64)])
def test_rows_do_not_depend_on_the_call(heads: int, head_dim: int, rotary: int) -> None:
    rope = RopeSpec(1e7, rotary, (rotary // 2 - 4, 2, 2))
    q_weight, k_weight = _normal(head_dim, seed=1), _normal(head_dim, seed=2)

    positions = torch.randint(0, 262144, (9, 3), generator=torch.Generator().manual_seed(1)).int()
    for route in routes_here(IMPLEMENTATIONS["qk_norm_rope"], compiled_cpu.SOURCE):

        def run(
            q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, route: Route = route
        ) -> tuple[torch.Tensor, torch.Tensor]:
            outs = poisoned(*q.shape), poisoned(*k.shape)
            axes = positions.t().contiguous()
            IMPLEMENTATIONS["qk_norm_rope"][route](q, k, q_weight, k_weight, EPS, axes, rope, *outs)
            return outs

        assert_rows_independent(run, _normal(9, heads, head_dim), _normal(9, 1, head_dim, seed=5), positions)


def test_outputs_may_replace_their_inputs() -> None:
    q, k, weights = _normal(5, 2, 64), _normal(5, 1, 64, seed=1), (_normal(64, seed=2), _normal(64, seed=3))
    positions, rope = torch.arange(15, dtype=torch.int32).view(3, 5), RopeSpec(1e4, 16, (4, 2, 2))
    for route in routes_here(IMPLEMENTATIONS["qk_norm_rope"], compiled_cpu.SOURCE):
        run = IMPLEMENTATIONS["qk_norm_rope"][route]
        outs, replaced = (poisoned(5, 2, 64), poisoned(5, 1, 64)), (q.clone(), k.clone())
        run(q, k, *weights, EPS, positions, rope, *outs)
        run(*replaced, *weights, EPS, positions, rope, *replaced)
        assert all(map(same_bits, replaced, outs))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="sections"):
        RopeSpec(1e7, 64, (11, 11, 11))
    with pytest.raises(ValueError, match="rotary_dim"):
        RopeSpec(1e7, 3, (1, 0, 0))
    with pytest.raises(ValueError, match="theta"):
        RopeSpec(0.0, 4, (2, 0, 0))
    q, k, w = _normal(2, 2, 64), _normal(2, 1, 64), _normal(64)
    positions, rope = torch.zeros(3, 2, dtype=torch.int32), RopeSpec(1e7, 4, (2, 0, 0))
    outs = poisoned(2, 2, 64), poisoned(2, 1, 64)
    with pytest.raises(ValueError, match="qk_norm_rope: positions"):
        qk_norm_rope(q, k, w, w, EPS, positions[:1], rope, *outs)
    with pytest.raises(ValueError, match="qk_norm_rope: k_out"):
        qk_norm_rope(q, k, w, w, EPS, positions, rope, outs[0], outs[0])
    with pytest.raises(ValueError, match="D >= 4"):
        qk_norm_rope(q[..., :2], k, w, w, EPS, positions, rope, *outs)
