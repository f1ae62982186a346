"""sample's CUDA route in the emulator: the oracle's tokens, faults, rows that do not depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from ninfer.kernels.jit import using
from ninfer.kernels.philox import Purpose, uniform
from ninfer.kernels.routes import Route
from ninfer.kernels.sampling import SamplingRow, TokenCounts, allow_only, oracle
from ninfer.kernels.sampling.cases import CASES, Case
from ninfer.kernels.sampling.plan import cuda_plan
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.test_sampling import KINDS, NARROW, _faults, _parts, _sample

pytestmark = NEEDS_EMULATOR
WIDE = [case for case in CASES["sample"] if 500 < case.vocab <= 20000]
OFFICIAL = ("official_nucleus", "official_presence")
LARGE = [case for case in CASES["sample"] if case.name in OFFICIAL]


@pytest.fixture
def emulated() -> Iterator[None]:
    with using(Emulator()):
        yield


def _assert_the_oracle_s(case: Case, positions: Sequence[int], emulator: Emulator, purpose: Purpose) -> None:
    logits, row, parameters = _parts(case, seed=11)
    pairs = oracle.distribution(logits.tolist(), parameters)
    expected = [oracle.draw(pairs, uniform(row.seed, position, purpose)) for position in positions]
    rows, count = [replace(row, purpose=purpose)] * len(positions), len(positions)
    before = logits.clone()
    with using(emulator):
        assert _sample(logits.expand(count, -1).contiguous(), rows, positions, Route.CUDA) == expected
    assert torch.equal(logits, before)


@pytest.mark.parametrize("case", NARROW, ids=lambda case: case.name)
def test_narrow_rows_give_the_oracle_s_tokens(case: Case) -> None:
    _assert_the_oracle_s(case, (case.vocab, 2**64 - 1), Emulator(mode="check"), Purpose.TOKEN)
    _assert_the_oracle_s(case, range(40), Emulator(order="random", seed=2), Purpose.DRAFT)


@pytest.mark.parametrize("case", WIDE, ids=lambda case: case.name)
def test_wide_rows_give_the_oracle_s_tokens(case: Case) -> None:
    _assert_the_oracle_s(case, (case.vocab, 0, 1, 2, 3, 2**64 - 1), Emulator(order="sticky"), Purpose.TOKEN)


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_official_rows_give_the_oracle_s_tokens(case: Case) -> None:
    _assert_the_oracle_s(case, (7,), Emulator(), Purpose.TOKEN)


def test_wide_rows_pass_the_checks() -> None:
    case = Case("ties_with_all", 3000, 0.8, 1500, 0.9, 1e-4, 0.5, 0.25, 1.2, history=300, masked=2500, levels=3)
    _assert_the_oracle_s(case, (1, 2), Emulator(mode="check", order="random", seed=5), Purpose.TOKEN)
    _assert_the_oracle_s(replace(case, top_k=0), (1, 2), Emulator(mode="check"), Purpose.TOKEN)


def test_a_row_does_not_depend_on_its_batch_nor_on_the_order_of_threads() -> None:
    cases = [replace(case, vocab=1500) for case in NARROW]
    parts = [_parts(case, seed=i) for i, case in enumerate(cases)]
    with using(Emulator(order="lifo")):
        alone = [_sample(logits[None].clone(), [row], [i], Route.CUDA)[0] for i, (logits, row, _) in enumerate(parts)]
    order = np.random.default_rng(3).permutation(len(parts)).tolist()
    together = torch.stack([parts[i][0] for i in order])
    for emulator in (Emulator(order="random", seed=9), Emulator(order="sticky")):
        with using(emulator):
            got = _sample(together, [parts[i][1] for i in order], order, Route.CUDA)
        assert got == [alone[i] for i in order]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("row", KINDS)
def test_rows_without_a_token_are_all_named_and_nothing_is_written(row: SamplingRow) -> None:
    masked, logits = replace(row, mask=allow_only([], 300)), torch.zeros(5, 300)
    assert _faults(logits, [row, masked, row, masked, row], Route.CUDA) == (1, 3)
    logits[4] = -torch.inf
    logits[0, 299] = torch.nan
    assert _faults(logits, [row, row, row, masked, row], Route.CUDA) == (0, 3, 4)
    logits[0, 299] = torch.inf
    assert _faults(logits, [row, row, row, row, row], Route.CUDA) == (0, 4)


@pytest.mark.usefixtures("emulated")
def test_a_penalised_nan_is_a_fault_and_a_masked_one_is_not() -> None:
    logits = torch.zeros(1, 300)
    logits[0, 3] = torch.nan
    for row in KINDS:
        assert _faults(logits, [row], Route.CUDA) == (0,)
        allowed = replace(row, mask=allow_only([200], 300))
        assert _sample(logits, [allowed], [0], Route.CUDA) == [200]


@pytest.mark.usefixtures("emulated")
def test_scores_beyond_fp32_are_scores() -> None:
    logits, outputs = torch.zeros(1, 300), TokenCounts({7: 1, 8: 2})
    logits[0, 100] = 1.0
    for top_k, temperature in ((0, 1.0), (5, 1.0), (0, 0.0)):
        above = SamplingRow(temperature, top_k, presence_penalty=-1e200, outputs=outputs)
        assert _sample(logits, [above], [0], Route.CUDA) == [7]
        far = replace(above, frequency_penalty=1e200, mask=allow_only([8, 100], 300))
        assert _sample(logits, [far], [0], Route.CUDA) == [100]
        overflow = replace(above, presence_penalty=0.0, frequency_penalty=-1.7e308)
        assert _faults(logits, [overflow], Route.CUDA) == (0,)


@pytest.mark.usefixtures("emulated")
def test_a_great_temperature_leaves_the_order_of_scores() -> None:
    logits = torch.arange(600.0)[None]
    row = SamplingRow(1e30, top_k=3)
    draws = {_sample(logits, [row], [position], Route.CUDA)[0] for position in range(30)}
    assert draws == {597, 598, 599}


@pytest.mark.usefixtures("emulated")
def test_a_row_sees_its_mask_and_outputs_change() -> None:
    outputs, mask = TokenCounts(), allow_only([5, 6, 7], 40)
    row = SamplingRow(temperature=0.0, presence_penalty=1.0, outputs=outputs, mask=mask)
    logits, found = torch.zeros(1, 40), []
    for _ in range(4):
        (token,) = _sample(logits, [row], [0], Route.CUDA)
        outputs.add([token])
        found.append(token)
    assert found == [5, 6, 7, 5]
    mask.copy_(allow_only([33], 40))
    assert _sample(logits, [row], [0], Route.CUDA) == [33]


class _Apart(Emulator):
    """A device that cannot reach int tensors: masks and prompts have to travel with the parameters."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() and super().holds(tensor)


@pytest.mark.parametrize("name", ["all_at_once", "repetition", "greedy_masked"])
def test_masks_and_prompts_of_the_host_travel_with_the_parameters(name: str) -> None:
    case = next(case for case in NARROW if case.name == name)
    _assert_the_oracle_s(case, (1, 5), _Apart(mode="check"), Purpose.TOKEN)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("token", [-1, 40])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    prompted = SamplingRow(repetition_penalty=2.0, prompt_ids=torch.tensor([3, token]))
    for row in (prompted, SamplingRow(presence_penalty=1.0, outputs=TokenCounts({token: 1}))):
        with pytest.raises(ValueError, match=r"row 1: prompt_ids and outputs must lie in \[0, 40\)"):
            _sample(torch.zeros(2, 40), [SamplingRow(), row], [0, 0], Route.CUDA)


def test_the_plan_leaves_room_for_the_sum_of_all_weights() -> None:
    for columns in (1, 300, 248320, 262144, 2**20):
        plan = cuda_plan(2, columns)
        assert columns << plan.scale < 2**63
        assert 40 <= plan.scale <= 52
        assert 0 < plan.states < plan.masses < plan.outcome < plan.fresh < plan.workspace
        assert not any(place % 8 for place in (plan.states, plan.masses, plan.outcome, plan.fresh))
