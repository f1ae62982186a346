"""The mixture-of-experts ops' CUDA routes in the emulator: oracles, ties, rows of their own, no reading on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError
from ninfer.kernels import moe_experts, moe_route, moe_shared_add
from ninfer.kernels.jit import DeviceFacts, record, using
from ninfer.kernels.linear import cuda as linear_cuda
from ninfer.kernels.linear import oracle as linear_oracle
from ninfer.kernels.moe import ExpertWeights, cases, cuda, cuda_experts, oracle, prepare_experts
from ninfer.kernels.moe.plan import grouping, held_per_lane, narrow_plan, wide_plan
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ELEMENTWISE, EXACT, MATMUL, MATMUL_CHAIN, PROBABILITY
from ninfer.kernels.weights import LinearWeight, WeightView, prepare_linear
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, assert_rows_independent, compare, conform, poisoned, same_bits
from tests.kernels.test_moe import Sample, _choice, _logits, _route
from tests.kernels.weight_samples import fp32_view, normal, view

pytestmark = NEEDS_EMULATOR
FACTS = DeviceFacts(arch=80, multiprocessors=4, shared_bytes=100 * 1024)


@pytest.fixture
def emulated() -> Iterator[None]:
    with using(Emulator()):
        yield


# ---- moe_route and moe_shared_add ------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases.CASES["moe_route"], ids=lambda case: case.name)
def test_route_matches_the_oracle(case: cases.Case) -> None:
    logits = _logits(case)
    ids, weights = poisoned(case.rows, case.top_k, dtype=torch.int64), poisoned(case.rows, case.top_k)
    wanted_ids, wanted_weights = oracle.moe_route(logits.numpy(), case.top_k)
    trial = Trial(
        {"logits": logits},
        {"ids": ids, "weights": weights},
        lambda _: cuda.moe_route(logits, case.top_k, ids, weights),
        {"ids": wanted_ids, "weights": wanted_weights},
        {"ids": EXACT, "weights": PROBABILITY},
    )
    with using(Emulator(mode="check")):
        conform(trial, [Route.CUDA])


@pytest.mark.usefixtures("emulated")
def test_zeros_of_both_signs_tie() -> None:
    logits = torch.zeros(2, 64)
    logits[0, ::2] = -0.0
    logits[1, 1::2] = -0.0
    ids, weights = _route(logits, 3)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert (weights - 1 / 3).abs().max() < 1e-7


@pytest.mark.usefixtures("emulated")
def test_a_row_that_is_not_finite_gets_experts_that_exist() -> None:
    logits, clean = normal(5, 20), normal(5, 20)
    logits[1], logits[2], logits[3, :18] = float("nan"), -float("inf"), float("inf")
    (ids, weights), (wanted_ids, wanted) = _route(logits, 8), _route(clean, 8)
    assert ((ids >= 0) & (ids < 20)).all()
    assert all(len(set(row)) == 8 for row in ids.tolist())
    assert torch.equal(ids[[0, 4]], wanted_ids[[0, 4]])
    assert same_bits(weights[[0, 4]], wanted[[0, 4]])


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (64, 6), (256, 8)])
def test_routing_of_a_row_is_its_own(experts: int, top_k: int) -> None:
    logits = normal(5, experts, spread=2.0)
    assert_rows_independent(partial(_route, top_k=top_k), logits, counts=(1, 3, 9, 33))


@pytest.mark.parametrize("case", cases.CASES["moe_shared_add"], ids=lambda case: case.name)
def test_shared_add_matches_the_oracle(case: cases.Case) -> None:
    shared, score = normal(case.rows, case.hidden), normal(case.rows, 1, seed=1, spread=3.0)
    routed, residual = normal(case.rows, case.hidden, seed=2), normal(case.rows, case.hidden, seed=3).abs() + 8
    out = poisoned(case.rows, case.hidden)
    trial = Trial(
        {"shared": shared, "score": score, "routed": routed, "residual": residual},
        {"out": out},
        lambda _: cuda.moe_shared_add(shared, score, routed, residual, out),
        {"out": oracle.moe_shared_add(shared.numpy(), score.numpy(), routed.numpy(), residual.numpy())},
        {"out": ELEMENTWISE},
    )
    with using(Emulator(mode="check")):
        conform(trial, [Route.CUDA])


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("replaced", [0, 2, 3])
def test_the_output_may_replace_an_input(replaced: int) -> None:
    rows = [normal(3, 67), normal(3, 1, seed=1), normal(3, 67, seed=2), normal(3, 67, seed=3)]
    wanted = poisoned(3, 67)
    shared, score, routed, residual = rows
    moe_shared_add(shared, score, routed, residual, wanted)
    moe_shared_add(shared, score, routed, residual, rows[replaced])
    assert same_bits(rows[replaced], wanted)


# ---- moe_experts -------------------------------------------------------------------------------------------


class Trials:
    """Experts of one case on the device, and calls of them."""

    def __init__(self, case: cases.Case) -> None:
        self.case, self.sample = case, Sample(case)
        gate_up, down = (
            [prepare_linear([part], signs=self.sample._rotation(part), route=Route.CUDA) for part in parts]
            for parts in (self.sample.gate_up, self.sample.down)
        )
        self.experts = prepare_experts(gate_up, down)
        self.ids, self.weights = oracle.moe_route(normal(case.rows, case.experts, spread=2.0).numpy(), case.top_k)
        self.inputs = (normal(case.rows, case.hidden), torch.from_numpy(self.ids), torch.tensor(self.weights).float())

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = poisoned(*x.shape)
        cuda_experts.moe_experts(x, self.experts, ids, weights, out)
        return out

    def check(self) -> None:
        """Gated products as `down` takes them, against the oracle; the result against the oracle of these products."""
        x, ids, weights = self.inputs
        out = poisoned(*x.shape)
        call = cuda_experts.Call(x, self.experts, ids, weights, out)
        call.run()
        slots, width = call.groups.slots, self.experts.products
        begin = call.products - call.scratch.data_ptr()
        products = call.scratch[begin : begin + 4 * slots * width].view(torch.float32).view(slots, width).clone()
        compare("products", products, self._gated(x), MATMUL_CHAIN)
        compare("out", out, self._summed(products.numpy()), MATMUL)

    def _linear(self, part: WeightView, signs: torch.Tensor | None) -> oracle.Linear:
        stored = linear_oracle.StoredRows(part.format, part.shape, part.row_begin, part.row_end, part.data.numpy())
        return lambda x: linear_oracle.linear_bf16(x, [stored], None if signs is None else signs.numpy())

    def _gated(self, x: torch.Tensor) -> np.ndarray:
        linears = [self._linear(part, self.sample._rotation(part)) for part in self.sample.gate_up]
        rows = [
            oracle.gated(x[row : row + 1].numpy(), linears[expert])
            for row, chosen in enumerate(self.ids)
            for expert in chosen
        ]
        products = np.concatenate(rows)
        signs = self.sample._rotation(self.sample.down[0])  # of all experts
        return products if signs is None else linear_oracle._rotated(products, signs.numpy())

    def _summed(self, products: np.ndarray) -> np.ndarray:
        linears = [self._linear(part, None) for part in self.sample.down]
        out = np.zeros((self.case.rows, self.case.hidden))
        for slot, expert in enumerate(self.ids.flatten()):
            row, share = divmod(slot, self.case.top_k)
            weight = self.inputs[2].double().numpy()[row, share]
            out[row] += weight * linears[expert](products[slot : slot + 1])[0]
        return out


def _case(name: str, *sizes: int, formats: tuple[Format, Format]) -> cases.Case:
    rows, experts, top_k, hidden, products = sizes
    return cases.Case(name, rows, experts, top_k, hidden, products, gate_up=formats[0], down=formats[1])


SMALL = [
    _case("groupwise", 5, 6, 3, 256, 128, formats=(Format.Q4, Format.Q5)),
    _case("six_and_eight", 3, 4, 2, 192, 96, formats=(Format.Q6, Format.Q8)),
    _case("ragged", 3, 4, 3, 300, 70, formats=(Format.T2, Format.Q6)),
    _case("floats", 3, 3, 2, 192, 128, formats=(Format.FP8_ROW, Format.BF16)),
    _case("ragged_floats", 2, 3, 2, 75, 37, formats=(Format.BF16, Format.FP8_ROW)),
    _case("nvfp4", 2, 3, 2, 128, 128, formats=(Format.NVFP4, Format.NVFP4)),
    _case("fp32", 5, 3, 3, 130, 7, formats=(Format.FP32, Format.FP32)),
    _case("more_than_an_item", 21, 2, 1, 128, 64, formats=(Format.Q4, Format.Q8)),
    _case("tiles_of_16", 40, 3, 1, 192, 72, formats=(Format.Q5, Format.Q6)),
    _case("tiles_of_32", 40, 2, 1, 130, 65, formats=(Format.T2, Format.BF16)),
    _case("tiles_of_64", 75, 2, 1, 128, 128, formats=(Format.NVFP4, Format.Q4)),
    _case("one", 1, 1, 1, 1, 1, formats=(Format.FP32, Format.BF16)),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_experts_match_the_oracle(case: cases.Case) -> None:
    for cp_async in ("late", "eager"):
        with using(Emulator(mode="check", cp_async=cp_async, facts=FACTS)):
            Trials(case).check()


def test_the_cases_have_all_tiles() -> None:
    tiles = {grouping(case.rows, case.top_k, case.experts).tile for case in SMALL if case.gate_up is not Format.FP32}
    assert tiles == {8, 16, 32, 64}


def test_experts_of_the_official_size_match_the_oracle() -> None:
    case = next(case for case in cases.CASES["moe_experts"] if case.name == "official_35b")
    with using(Emulator(order="sticky", facts=DeviceFacts(arch=90, multiprocessors=132, shared_bytes=227 * 1024))):
        Trials(case).check()


ROTATED = next(case for case in cases.CASES["moe_experts"] if case.name == "rotated")


@pytest.mark.parametrize("case", [ROTATED, replace(ROTATED, rows=9, experts=1, top_k=1)], ids=["narrow", "wide"])
def test_rotated_inputs_match_the_oracle(case: cases.Case) -> None:
    with using(Emulator(order="random", seed=1)):
        Trials(case).check()


@pytest.mark.usefixtures("emulated")
def test_experts_may_be_rotated_or_not() -> None:
    def prepared(rows: int, columns: int, rotates: bool, seed: int) -> LinearWeight:
        signs = normal(columns, seed=seed).sign() if rotates else None
        return prepare_linear([view(Format.T2, (rows, columns), seed=seed)], signs=signs, route=Route.CUDA)

    gate_up = [prepared(2048, 64, False, 0), prepared(2048, 64, False, 1)]
    down = [prepared(64, 1024, False, 2), prepared(64, 1024, True, 3)]
    experts = prepare_experts(gate_up, down)
    assert isinstance(experts.table, cuda_experts.DeviceExperts)
    assert (experts.table.gate_up.rotates, experts.table.down.rotates) == (False, True)
    x, ids, weights, out = normal(2, 64), torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 2), poisoned(2, 64)
    moe_experts(x, experts, ids, weights, out)
    apart = torch.zeros(2, 64)
    for row, chosen in enumerate(ids.tolist()):
        for expert in chosen:
            apart[row] += _alone(experts, expert, x[row : row + 1])
    assert same_bits(out, apart)


def _alone(experts: ExpertWeights, expert: int, x: torch.Tensor) -> torch.Tensor:
    """One expert's result [H] by linear's own kernels."""
    product, result = poisoned(1, experts.products), poisoned(1, experts.columns)
    assert linear_cuda.gate_up_swiglu(x, experts.gate_up[expert], product)
    linear_cuda.linear(product, experts.down[expert], result)
    return result[0]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", SMALL[:4], ids=lambda case: case.name)
def test_experts_have_the_bits_of_their_linears(case: cases.Case) -> None:
    trials = Trials(case)
    x, ids, weights = trials.inputs
    apart = torch.zeros(case.rows, case.hidden)
    for row, chosen in enumerate(ids.tolist()):
        for share, expert in enumerate(chosen):
            apart[row] += _alone(trials.experts, expert, x[row : row + 1]) * weights[row, share]
    assert same_bits(trials.run(*trials.inputs), apart)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("name", "count"), [("groupwise", 20), ("fp32", 5), ("tiles_of_16", 100), ("ragged_floats", 30)]
)
def test_experts_of_a_row_are_its_own(name: str, count: int) -> None:
    """Also where one call has tiles of few rows and the other of many."""
    trials = Trials(next(case for case in SMALL if case.name == name))
    rows = [tensor[:4].contiguous() for tensor in trials.inputs]
    assert_rows_independent(lambda *some: (trials.run(*some),), *rows, counts=(1, 3, count))


def test_the_order_of_threads_does_not_show() -> None:
    results = []
    for emulator in (Emulator(order="random", seed=4, cp_async="eager"), Emulator(order="lifo")):
        with using(emulator):
            trials = Trials(SMALL[0])
            results.append(trials.run(*trials.inputs))
    assert same_bits(*results)


def _pair(formats: tuple[Format, Format], seed: int) -> list[WeightView]:
    return [view(fmt, (32, 64), seed=seed + i) for i, fmt in enumerate(formats)]


@pytest.mark.usefixtures("emulated")
def test_gate_and_up_may_lie_apart_and_differ() -> None:
    """Experts of formats of their own; the fp32 product of one side is the reference of the other's."""
    kinds = [(Format.Q4, Format.Q4), (Format.Q8, Format.BF16), (Format.FP32, Format.T2)]
    gate_up = [prepare_linear(_pair(kind, 10 * e), route=Route.CUDA) for e, kind in enumerate(kinds)]
    down = [prepare_linear([view(Format.Q6, (64, 32), seed=e)], route=Route.CUDA) for e in range(3)]
    experts = prepare_experts(gate_up, down)
    assert isinstance(experts.table, cuda_experts.DeviceExperts)
    assert experts.table.gate_up.formats == 0
    x, (ids, weights), out, apart = normal(4, 64), _choice(4, 3, 2), poisoned(4, 64), torch.zeros(4, 64)
    moe_experts(x, experts, ids, weights, out)
    for row, chosen in enumerate(ids.tolist()):
        for share, expert in enumerate(chosen):
            both, result = poisoned(1, 64), poisoned(1, 64)
            linear_cuda.linear(x[row : row + 1], experts.gate_up[expert], both)
            gate, up = both[:, :32], both[:, 32:]
            linear_cuda.linear((gate * torch.sigmoid(gate) * up).contiguous(), experts.down[expert], result)
            apart[row] += result[0] * weights[row, share]
    compare("out", out, apart.double().numpy(), MATMUL_CHAIN)


@pytest.mark.usefixtures("emulated")
def test_experts_that_nobody_chose_are_not_read() -> None:
    trials, spoilt = Trials(SMALL[0]), Trials(SMALL[0])
    unread = spoilt.sample.gate_up[5].data
    ctypes.memset(unread.data_ptr(), 0xFF, unread.numel())  # scales that are NaN
    inputs = (trials.inputs[0], torch.tensor([[4, 0, 2]] * 5), trials.inputs[2])
    assert same_bits(spoilt.run(*inputs), trials.run(*inputs))
    inputs[1][3, 1] = 5
    assert spoilt.run(*inputs).isnan().all(dim=1).tolist() == [False, False, False, True, False]


@pytest.mark.usefixtures("emulated")
def test_a_row_that_is_not_finite_affects_only_itself() -> None:
    trials = Trials(SMALL[0])
    x, ids, weights = trials.inputs
    clean = trials.run(x, ids, weights)
    spoilt = x.clone()
    spoilt[2, 7] = float("nan")
    out, others = trials.run(spoilt, ids, weights), [0, 1, 3, 4]
    assert same_bits(out[others], clean[others])
    assert out[2].isnan().all()


@pytest.mark.usefixtures("emulated")
def test_a_recording_reads_ids_when_it_runs() -> None:
    trials = Trials(SMALL[0])
    logits, (x, ids, weights) = normal(5, 6), trials.inputs
    ids, weights, out = torch.zeros_like(ids), weights.clone(), poisoned(*x.shape)

    def work() -> None:
        moe_route(logits, 3, ids, weights)
        moe_experts(x, trials.experts, ids, weights, out)
        moe_shared_add(x, logits[:, :1].contiguous(), out, x, out)

    with pytest.MonkeyPatch.context() as patch:
        recording = record(work)
        patch.setattr(torch.Tensor, "tolist", None)
        logits.copy_(normal(5, 6, seed=2))
        recording.run()
    wanted_ids, wanted_weights = oracle.moe_route(logits.numpy(), 3)
    assert np.array_equal(ids.numpy(), wanted_ids)
    assert np.allclose(weights.numpy(), wanted_weights, rtol=1e-5)
    assert out.isfinite().all()


@pytest.mark.usefixtures("emulated")
def test_no_rows_are_no_work() -> None:
    trials = Trials(SMALL[0])
    assert trials.run(*(tensor[:0] for tensor in trials.inputs)).shape == (0, 256)


@pytest.mark.usefixtures("emulated")
def test_weights_that_kernels_cannot_multiply_by_are_refused() -> None:
    prepare = partial(prepare_linear, route=Route.CUDA)
    whole, down = prepare([view(Format.Q4, (64, 64))]), prepare([view(Format.Q4, (64, 32))])
    with pytest.raises(ConfigError, match=r"expert 0: .* down rows stored as one object"):
        prepare_experts([whole], [prepare([view(Format.Q4, (32, 32)), view(Format.Q8, (32, 32))])])
    uneven = prepare([fp32_view(48, 64, 0), fp32_view(16, 64, 1)])
    with pytest.raises(ConfigError, match=r"expert 1: .* gate and up rows"):
        prepare_experts([whole, uneven], [down, down])


# ---- plans -------------------------------------------------------------------------------------------------


def test_items_are_enough_whatever_is_chosen() -> None:
    for rows, top_k, experts in ((1, 8, 256), (8, 8, 256), (300, 2, 3), (2048, 8, 256), (5, 1, 1)):
        plan = grouping(rows, top_k, experts)
        active = min(experts, plan.slots)
        worst = active - 1 + -(-(plan.slots - active + 1) // plan.tile)
        assert worst <= plan.items <= worst + active
    assert grouping(1, 8, 256).items == 8
    assert [grouping(rows, 8, 256).tile for rows in (1, 256, 257, 1024, 2048, 9000)] == [8, 8, 16, 32, 64, 64]


def test_blocks_fit_and_cover_the_rows() -> None:
    large = DeviceFacts(arch=90, multiprocessors=132, shared_bytes=227 * 1024)
    for facts in (FACTS, large):
        for rows, columns, paired in ((512, 2048, True), (2048, 512, False), (7, 130, True), (33, 17408, False)):
            for row_bytes in (64, 128, 256):
                plan = narrow_plan(rows, columns, row_bytes, paired, facts)
                assert plan.shared <= facts.shared_bytes
                assert plan.team * plan.teams <= 8
                assert plan.blocks * plan.teams * (16 if paired else 32) >= rows
            for row_bytes, tile in ((64, 64), (256, 64), (256, 16)):
                wide = wide_plan(rows, row_bytes, tile, paired, facts)
                assert wide.shared <= facts.shared_bytes
                assert wide.blocks * (64 if paired else 128) >= rows
    assert wide_plan(512, 64, 64, True, FACTS).stages == 3
    official = narrow_plan(512, 2048, 64, True, large)
    assert (official.team, official.teams, official.blocks) == (4, 1, 32)


def test_lanes_hold_all_experts() -> None:
    assert [held_per_lane(experts) for experts in (1, 32, 33, 256, 257)] == [1, 1, 2, 8, 16]
