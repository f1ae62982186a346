"""The CUDA routes of log_softmax_gather and top_logprobs in the emulator: oracles, ties, rows of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ninfer.kernels import log_softmax_gather, top_logprobs
from ninfer.kernels.jit import using
from ninfer.kernels.log_softmax_gather import cases, cuda, oracle
from ninfer.kernels.log_softmax_gather.plan import cuda_plan
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import EXACT, LOG_PROBABILITY
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, same_bits
from tests.kernels.test_log_softmax_gather import _gather, _logits, _top
from tests.kernels.weight_samples import normal

pytestmark = NEEDS_EMULATOR
ORDERS = [Emulator(order="sticky"), Emulator(order="random", seed=3)]


@pytest.fixture
def emulated() -> Iterator[None]:
    with using(Emulator()):
        yield


def _emulator(case: cases.Case) -> Emulator:
    return Emulator(mode="check") if case.rows * case.vocab < 6000 else Emulator(order="lifo")


@pytest.mark.parametrize("case", cases.CASES["log_softmax_gather"], ids=lambda case: case.name)
def test_log_softmax_gather_matches_the_oracle(case: cases.Case) -> None:
    logits, out = _logits(case), poisoned(case.rows)
    targets = torch.randint(case.vocab, (case.rows,), generator=torch.Generator().manual_seed(1))
    trial = Trial(
        {"logits": logits, "targets": targets},
        {"out": out},
        lambda _: cuda.log_softmax_gather(logits, targets, out),
        {"out": oracle.log_softmax_gather(logits.numpy(), targets.numpy())},
        {"out": LOG_PROBABILITY},
    )
    with using(_emulator(case)):
        conform(trial, [Route.CUDA])


MORE_THAN_IS_SORTED = cases.Case("more_than_is_sorted", 1, 2500, top=2100, levels=5)


@pytest.mark.parametrize("case", [*cases.CASES["top_logprobs"], MORE_THAN_IS_SORTED], ids=lambda case: case.name)
def test_top_logprobs_matches_the_oracle(case: cases.Case) -> None:
    logits = _logits(case)
    ids, values = poisoned(case.rows, case.top, dtype=torch.int64), poisoned(case.rows, case.top)
    wanted_ids, wanted_values = oracle.top_logprobs(logits.numpy(), case.top)
    trial = Trial(
        {"logits": logits},
        {"ids": ids, "values": values},
        lambda _: cuda.top_logprobs(logits, case.top, ids, values),
        {"ids": wanted_ids, "values": wanted_values},
        {"ids": EXACT, "values": LOG_PROBABILITY},
    )
    with using(_emulator(case)):
        conform(trial, [Route.CUDA])


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("vocab", [7, 5000])
def test_rows_have_their_own_bits(vocab: int) -> None:
    logits = normal(4, vocab, spread=3.0)
    assert_rows_independent(_gather(Route.CUDA), logits, torch.arange(4) % vocab, counts=(1, 9))
    assert_rows_independent(_top(Route.CUDA), logits, counts=(1, 9))


def test_the_order_of_threads_does_not_show() -> None:
    logits = normal(2, 3000, spread=3.0)
    logits[1] = logits[1].round()

    def run(emulator: Emulator) -> tuple[torch.Tensor, torch.Tensor]:
        with using(emulator):
            return _top(Route.CUDA)(logits)

    results = [run(emulator) for emulator in ORDERS]
    assert all(map(same_bits, *results))


@pytest.mark.usefixtures("emulated")
def test_a_row_with_nan_spoils_no_other() -> None:
    logits, targets = normal(3, 1000), torch.zeros(3, dtype=torch.int64)
    spoilt, others = logits.clone(), torch.tensor([0, 2])
    spoilt[1, 500:] = torch.nan

    def check(run: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> torch.Tensor:
        for got, wanted in zip(run(spoilt), run(logits), strict=True):
            assert same_bits(got[others], wanted[others])
        return run(spoilt)[-1][1]

    assert check(lambda rows: _gather(Route.CUDA)(rows, targets)).isnan()
    assert check(_top(Route.CUDA)).isnan().all()
    ids = _top(Route.CUDA)(spoilt)[0]
    assert ((ids >= 0) & (ids < 1000)).all()


@pytest.mark.usefixtures("emulated")
def test_masked_tokens_come_last_by_id() -> None:
    logits = torch.full((1, 300), float("-inf"))
    logits[0, [290, 17]] = torch.tensor([1.0, 1.0])
    ids, values = _top(Route.CUDA)(logits)
    assert ids[0].tolist() == [17, 290, 0, 1, 2]
    assert values[0, 2:].tolist() == [float("-inf")] * 3
    logits = torch.full((1, 2000), float("-inf"))  # and where there are more spans than tokens wanted
    logits[0, [1990, 17]] = torch.tensor([1.0, 1.0])
    assert _top(Route.CUDA)(logits)[0].tolist() == [[17, 1990, 0, 1, 2]]


@pytest.mark.usefixtures("emulated")
def test_top_gives_the_values_of_gather() -> None:
    logits = normal(3, 5000, spread=3.0)
    ids, values = _top(Route.CUDA)(logits)
    (gathered,) = _gather(Route.CUDA)(logits, ids[:, 2].contiguous())
    assert same_bits(values[:, 2].contiguous(), gathered)


@pytest.mark.usefixtures("emulated")
def test_targets_are_not_read_on_the_host() -> None:
    out = poisoned(2)
    log_softmax_gather(normal(2, 5), torch.tensor([5, 0]), out)
    assert out.isnan().tolist() == [True, False]
    with pytest.raises(ValueError, match=r"k must lie in \[0, 5\]"):
        top_logprobs(normal(1, 5), 6, poisoned(1, 6, dtype=torch.int64), poisoned(1, 6))


def test_the_plan_has_a_place_for_every_span() -> None:
    plan = cuda_plan(2, 248320)
    assert (plan.spans, plan.grid) == (970, (2, 122, 1))
    assert (plan.sums, plan.workspace) == (2 * 970 * 4, 2 * 970 * 8)
