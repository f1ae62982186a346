"""qk_norm_rope on CUDA, in the emulator: against the oracle, in place, rows that do not depend on the call."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.jit import using
from ninfer.kernels.qk_norm_rope import IMPLEMENTATIONS, RopeSpec, oracle, qk_norm_rope
from ninfer.kernels.qk_norm_rope.cases import CASES, Case
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ROTATION
from tests.kernels.emulator import Emulator, missing
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, same_bits
from tests.kernels.test_qk_norm_rope import EPS, _frequencies, _normal, _positions

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


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
