"""qk_norm_rope on CUDA, in the emulator: against the oracle, in place, rows that do not depend on the call."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.jit import using
from ninfer.kernels.kv_cache import KvCodec, kv_append, make_kv_pool
from ninfer.kernels.qk_norm_rope import IMPLEMENTATIONS, RopeSpec, oracle, qk_norm_rope, qk_norm_rope_append
from ninfer.kernels.qk_norm_rope.cases import CASES, Case
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ROTATION
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, same_bits
from tests.kernels.test_qk_norm_rope import EPS, _frequencies, _normal, _positions

pytestmark = NEEDS_EMULATOR


@pytest.mark.parametrize("case", CASES["qk_norm_rope"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    q, k = _normal(case.tokens, case.heads, case.head_dim), _normal(case.tokens, case.kv_heads, case.head_dim)
    q_weight, k_weight = _normal(case.head_dim, seed=1), _normal(case.head_dim, seed=2)
    positions, rope = _positions(case), RopeSpec(case.theta, case.rotary_dim, case.sections)
    q_out, k_out = poisoned(*q.shape), poisoned(*k.shape)
    turned = positions.numpy(), _frequencies(case), case.sections
    route = IMPLEMENTATIONS["qk_norm_rope"][Route.CUDA]
    trial = Trial(
        {"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "positions": positions},
        {"q": q_out, "k": k_out},
        lambda _: route(q, k, q_weight, k_weight, EPS, positions, rope, q_out, k_out),
        {
            "q": oracle.qk_norm_rope(q.numpy(), q_weight.numpy(), EPS, *turned),
            "k": oracle.qk_norm_rope(k.numpy(), k_weight.numpy(), EPS, *turned),
        },
        {"q": ROTATION, "k": ROTATION},
    )
    with using(Emulator("check")):
        conform(trial, (Route.CUDA,))


def test_outputs_may_replace_their_inputs() -> None:
    q, k, weights = _normal(5, 2, 64), _normal(5, 1, 64, seed=1), (_normal(64, seed=2), _normal(64, seed=3))
    positions, rope = torch.arange(15, dtype=torch.int32).view(3, 5), RopeSpec(1e4, 16, (4, 2, 2))
    outs, replaced = (poisoned(5, 2, 64), poisoned(5, 1, 64)), (q.clone(), k.clone())
    with using(Emulator("check")):
        qk_norm_rope(q, k, *weights, EPS, positions, rope, *outs)
        qk_norm_rope(*replaced, *weights, EPS, positions, rope, *replaced)
    assert all(map(same_bits, replaced, outs))


def test_rows_do_not_depend_on_the_call() -> None:
    rope, weights = RopeSpec(1e7, 64, (28, 2, 2)), (_normal(64, seed=1), _normal(64, seed=2))
    positions = torch.randint(0, 262144, (9, 3), generator=torch.Generator().manual_seed(1)).int()

    def run(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outs = poisoned(*q.shape), poisoned(*k.shape)
        qk_norm_rope(q, k, *weights, EPS, positions.t().contiguous(), rope, *outs)
        return outs

    with using(Emulator(order="random", seed=3)):
        assert_rows_independent(run, _normal(9, 3, 64), _normal(9, 1, 64, seed=5), positions, counts=(1, 2, 7, 33))


@pytest.mark.parametrize("codec", KvCodec)
@pytest.mark.parametrize("dim", [64, 192])
def test_appending_in_one_pass_gives_the_bits_of_two(codec: KvCodec, dim: int) -> None:
    q, k, v = _normal(5, 3, dim), _normal(5, 2, dim, seed=1), _normal(5, 2, dim, seed=4)
    weights, rope = (_normal(dim, seed=2), _normal(dim, seed=3)), RopeSpec(1e7, 32, (6, 5, 5))
    positions = torch.randint(0, 262144, (3, 5), generator=torch.Generator().manual_seed(1)).int()
    slots, once, twice = torch.tensor([3, 64, 0, 127, 63]), *(make_kv_pool(codec, 2, 2, dim) for _ in range(2))
    fused = q.clone(), k.clone()
    with using(Emulator("check")):
        qk_norm_rope_append(*fused, v, *weights, EPS, positions, rope, once, slots)
        qk_norm_rope(q, k, *weights, EPS, positions, rope, q, k)
        kv_append(twice, k, v, slots)
    assert same_bits(fused[0], q)
    assert same_bits(fused[1], k)
    for got, wanted in ((once.keys, twice.keys), (once.values, twice.values)):
        assert same_bits(got.codes, wanted.codes)
        assert same_bits(got.scales, wanted.scales)
