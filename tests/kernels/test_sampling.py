"""sample against its oracle, its independence of the batch, and the distribution that it draws from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from ninfer.kernels.philox import Purpose, uniform
from ninfer.kernels.routes import Route
from ninfer.kernels.sampling import (
    IMPLEMENTATIONS,
    SampleFault,
    SamplingBatch,
    SamplingRow,
    TokenCounts,
    allow_only,
    compiled_cpu,
    distribution,
    draw,
    oracle,
    sample,
)
from ninfer.kernels.sampling.cases import CASES, Case
from ninfer.kernels.tolerances import EXACT
from tests.kernels.harness import Trial, conform, poisoned, routes_here


def _parts(case: Case, seed: int = 0) -> tuple[torch.Tensor, SamplingRow, oracle.Parameters]:
    rng = np.random.default_rng([case.vocab, seed])
    logits = (3 * rng.standard_normal(case.vocab)).astype(np.float32)
    if case.levels:
        logits = rng.integers(case.levels, size=case.vocab).astype(np.float32)
    prompt = rng.integers(case.vocab, size=case.history)
    output = {int(i): int(rng.integers(1, 5)) for i in rng.integers(case.vocab, size=case.history)}
    permitted = sorted(rng.choice(case.vocab, case.masked, replace=False).tolist()) if case.masked else None
    shared = {
        name: getattr(case, name)
        for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")
    } | {"repetition_penalty": case.repetition_penalty}
    row = SamplingRow(
        **shared,
        seed=seed,
        prompt_ids=torch.from_numpy(prompt),
        outputs=TokenCounts(output),
        mask=None if permitted is None else allow_only(permitted, case.vocab),
    )
    wanted = oracle.Parameters(**shared, prompt=prompt.tolist(), output=output, allowed=permitted)
    return torch.from_numpy(logits), row, wanted


ROUTES = routes_here(IMPLEMENTATIONS["sample"], compiled_cpu.SOURCE)
NARROW = [case for case in CASES["sample"] if case.vocab <= 500]


def _sample(logits: torch.Tensor, rows: Sequence[SamplingRow], positions: Sequence[int], route: Route) -> list[int]:
    out = poisoned(len(rows), dtype=torch.int64)
    IMPLEMENTATIONS["sample"][route](logits, SamplingBatch(tuple(rows), tuple(positions)), out)
    return out.tolist()


@pytest.mark.parametrize("case", CASES["sample"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    logits, row, parameters = _parts(case, seed=11)
    pairs = oracle.distribution(logits.tolist(), parameters)
    got = distribution(logits, row)
    assert got.ids.tolist() == [token for token, _ in pairs]
    np.testing.assert_allclose(got.probabilities, [p for _, p in pairs], rtol=1e-11, atol=0)

    out, positions = poisoned(3, dtype=torch.int64), (case.vocab, 0, 2**64 - 1)
    expected = [oracle.draw(pairs, uniform(row.seed, position, Purpose.TOKEN)) for position in positions]
    stacked, batch = logits.expand(3, -1).contiguous(), SamplingBatch((row,) * 3, positions)
    trial = Trial(
        {"logits": stacked},
        {"out": out},
        lambda route: IMPLEMENTATIONS["sample"][route](stacked, batch, out),
        {"out": np.array(expected)},
        {"out": EXACT},
    )
    conform(trial, ROUTES)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", NARROW, ids=lambda case: case.name)
def test_many_draws_are_the_oracle_s(case: Case, route: Route) -> None:
    logits, row, parameters = _parts(case, seed=5)
    pairs = oracle.distribution(logits.tolist(), parameters)
    for purpose in (Purpose.TOKEN, Purpose.DRAFT):
        rows, positions = (replace(row, purpose=purpose),) * 200, range(200)
        expected = [oracle.draw(pairs, uniform(row.seed, position, purpose)) for position in positions]
        assert _sample(logits.expand(200, -1).contiguous(), rows, positions, route) == expected


@pytest.mark.parametrize("route", ROUTES)
def test_a_row_does_not_depend_on_its_batch(route: Route) -> None:
    _assert_rows_independent(NARROW, 300, route)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("route", ROUTES)
def test_a_row_does_not_depend_on_its_batch_with_two_threads(route: Route) -> None:
    _assert_rows_independent(CASES["sample"], 20000, route)


def _assert_rows_independent(cases: Sequence[Case], vocab: int, route: Route) -> None:
    """Rows of different parameters, one by one on one thread and then together."""
    parts = [_parts(replace(case, vocab=vocab), seed=i) for i, case in enumerate(cases)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = [_sample(logits[None].clone(), [row], [i], route)[0] for i, (logits, row, _) in enumerate(parts)]
    torch.set_num_threads(threads)
    order = np.random.default_rng(3).permutation(len(parts)).tolist()
    together = torch.stack([parts[i][0] for i in order])
    assert _sample(together, [parts[i][1] for i in order], order, route) == [alone[i] for i in order]


@pytest.mark.parametrize("case", CASES["sample"], ids=lambda case: case.name)
def test_the_token_is_the_draw_from_the_whole_distribution(case: Case) -> None:
    logits, row, _ = _parts(case, seed=5)
    whole = distribution(logits, row)
    out = poisoned(1, dtype=torch.int64)
    for position in range(3 if case.vocab > 1000 else 40):
        sample(logits[None], SamplingBatch((row,), (position,)), out)
        assert out.item() == draw(whole, uniform(row.seed, position, Purpose.TOKEN))


def _chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    assert observed[expected == 0].sum() == 0, "a token of probability zero was drawn"
    live = expected > 0
    return float(((observed[live] - expected[live]) ** 2 / expected[live]).sum())


@pytest.mark.parametrize(
    "case",
    [
        Case("plain", 8),
        Case("cut", 12, temperature=1.5, top_k=8, top_p=0.9, min_p=0.05),
        Case("penalties", 9, presence_penalty=0.5, repetition_penalty=1.3, history=4),
        Case("masked", 10, temperature=2.0, masked=6),
    ],
    ids=lambda case: case.name,
)
def test_draws_follow_the_oracle_distribution(case: Case) -> None:
    logits, row, parameters = _parts(case, seed=99)
    draws = 3000
    counts = np.zeros(case.vocab)
    out = poisoned(1, dtype=torch.int64)
    for position in range(draws):
        sample(logits[None], SamplingBatch((row,), (position,)), out)
        counts[out.item()] += 1
    expected = np.zeros(case.vocab)
    for token, probability in oracle.distribution(logits.tolist(), parameters):
        expected[token] = probability * draws
    assert _chi_square(counts, expected) < 31.3  # 11 degrees of freedom (the most here), p = 0.001


def test_the_draw_is_the_first_running_sum_above_u() -> None:
    source = distribution(torch.tensor([0.0, np.log(2.0), 0.0]), SamplingRow())
    assert source.ids.tolist() == [1, 0, 2]
    assert [draw(source, u) for u in (1e-16, 0.49, 0.51, 0.74, 0.76, 1 - 1e-16)] == [1, 1, 0, 0, 2, 2]


def _faults(logits: torch.Tensor, rows: Sequence[SamplingRow], route: Route) -> tuple[int, ...]:
    out = poisoned(len(rows), dtype=torch.int64)
    before = out.clone()
    with pytest.raises(SampleFault) as fault:
        IMPLEMENTATIONS["sample"][route](logits, SamplingBatch(tuple(rows), (0,) * len(rows)), out)
    assert torch.equal(out, before)
    assert all(str(row) in str(fault.value) for row in fault.value.rows)
    return fault.value.rows


KINDS = [
    SamplingRow(),
    SamplingRow(temperature=0.0),
    SamplingRow(top_k=3),
    SamplingRow(min_p=0.1),
    SamplingRow(presence_penalty=0.5, outputs=TokenCounts({3: 1})),
]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", KINDS)
def test_rows_without_a_token_are_all_named_and_nothing_is_written(row: SamplingRow, route: Route) -> None:
    masked, logits = replace(row, mask=allow_only([], 300)), torch.zeros(5, 300)
    assert _faults(logits, [row, masked, row, masked, row], route) == (1, 3)
    logits[4] = -torch.inf
    logits[0, 299] = torch.nan
    assert _faults(logits, [row, row, row, masked, row], route) == (0, 3, 4)
    logits[0, 299] = torch.inf
    assert _faults(logits, [row, row, row, row, row], route) == (0, 4)


@pytest.mark.parametrize("route", ROUTES)
def test_a_penalised_nan_is_a_fault_and_a_masked_one_is_not(route: Route) -> None:
    logits = torch.zeros(1, 300)
    logits[0, 3] = torch.nan
    for row in KINDS:
        assert _faults(logits, [row], route) == (0,)
        allowed = replace(row, mask=allow_only([200], 300))
        assert _sample(logits, [allowed], [0], route) == [200]


@pytest.mark.parametrize("route", ROUTES)
def test_scores_beyond_fp32_are_scores(route: Route) -> None:
    """A penalised token may rank far above or below what a logit can be."""
    logits, outputs = torch.zeros(1, 300), TokenCounts({7: 1, 8: 2})
    logits[0, 100] = 1.0
    for top_k, temperature in ((0, 1.0), (5, 1.0), (0, 0.0)):
        above = SamplingRow(temperature, top_k, presence_penalty=-1e200, outputs=outputs)
        assert _sample(logits, [above], [0], route) == [7]
        far = replace(above, frequency_penalty=1e200, mask=allow_only([8, 100], 300))
        assert _sample(logits, [far], [0], route) == [100]
        overflow = replace(above, presence_penalty=0.0, frequency_penalty=-1.7e308)
        assert _faults(logits, [overflow], route) == (0,)


@pytest.mark.parametrize("route", ROUTES)
def test_a_row_sees_its_mask_and_outputs_change(route: Route) -> None:
    outputs, mask = TokenCounts(), allow_only([5, 6, 7], 40)
    row = SamplingRow(temperature=0.0, presence_penalty=1.0, outputs=outputs, mask=mask)
    logits, found = torch.zeros(1, 40), []
    for _ in range(4):
        (token,) = _sample(logits, [row], [0], route)
        outputs.add([token])
        found.append(token)
    assert found == [5, 6, 7, 5]
    mask.copy_(allow_only([33], 40))
    assert _sample(logits, [row], [0], route) == [33]


def test_counts_grow() -> None:
    counts = TokenCounts({9: 2})
    counts.add([4, 9, 4])
    assert counts.items() == [(9, 3), (4, 2)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("seed", -1),
        ("prompt_ids", torch.zeros(2)),
        ("mask", torch.zeros(2)),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"sample: {name} must be"):
        SamplingRow(**{name: value})


def test_batches_are_checked() -> None:
    for positions in ((), (-1,), (2**64,)):
        with pytest.raises(ValueError, match="sample: position"):
            SamplingBatch((SamplingRow(),), positions)
    batch = SamplingBatch((SamplingRow(mask=allow_only([], 64)),), (0,))
    with pytest.raises(ValueError, match="mask must have 3 words"):
        sample(torch.zeros(1, 65), batch, poisoned(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="one row per row of logits"):
        sample(torch.zeros(2, 64), batch, poisoned(2, dtype=torch.int64))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("token", [-1, 40])
def test_ids_outside_the_vocabulary_are_refused(token: int, route: Route) -> None:
    prompted = SamplingRow(repetition_penalty=2.0, prompt_ids=torch.tensor([3, token]))
    for row in (prompted, SamplingRow(presence_penalty=1.0, outputs=TokenCounts({token: 1}))):
        with pytest.raises(ValueError, match=r"row 1: prompt_ids and outputs must lie in \[0, 40\)"):
            _sample(torch.zeros(2, 40), [SamplingRow(), row], [0, 0], route)
