"""sample against its oracle, its independence of the batch, and the distribution that it draws from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ninfer.kernels.philox import Purpose, uniform
from ninfer.kernels.routes import DeviceKind, Problem
from ninfer.kernels.sampling import (
    IMPLEMENTATIONS,
    SamplingBatch,
    SamplingRow,
    allow_only,
    distribution,
    draw,
    oracle,
    sample,
)
from ninfer.kernels.sampling.cases import CASES, Case
from ninfer.kernels.sampling.plan import plan
from ninfer.kernels.tolerances import EXACT
from tests.kernels.harness import Trial, conform, poisoned


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
        position=case.vocab,
        prompt_ids=torch.from_numpy(prompt),
        output_ids=torch.tensor(list(output), dtype=torch.int64),
        output_counts=torch.tensor(list(output.values()), dtype=torch.int64),
        mask=None if permitted is None else allow_only(permitted, case.vocab),
    )
    wanted = oracle.Parameters(**shared, prompt=prompt.tolist(), output=output, allowed=permitted)
    return torch.from_numpy(logits), row, wanted


@pytest.mark.parametrize("case", CASES["sample"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    logits, row, parameters = _parts(case, seed=11)
    pairs = oracle.distribution(logits.tolist(), parameters)
    got = distribution(logits, row)
    assert got.ids.tolist() == [token for token, _ in pairs]
    np.testing.assert_allclose(got.probabilities, [p for _, p in pairs], rtol=1e-11, atol=0)

    out = poisoned(1, dtype=torch.int64)
    expected = oracle.draw(pairs, uniform(row.seed, row.position, Purpose.TOKEN))
    trial = Trial(
        {"logits": logits[None]},
        {"out": out},
        lambda route: IMPLEMENTATIONS["sample"][route](logits[None], SamplingBatch((row,)), out),
        {"out": np.array([expected])},
        {"out": EXACT},
    )
    conform(trial, plan(Problem(DeviceKind.CPU)))


def test_a_row_does_not_depend_on_its_batch() -> None:
    cases = [case for case in CASES["sample"] if case.vocab == 300]
    parts = [_parts(case, seed=i) for i, case in enumerate(cases)]
    alone = []
    for logits, row, _ in parts:
        out = poisoned(1, dtype=torch.int64)
        sample(logits[None].clone(), SamplingBatch((row,)), out)
        alone.append(out.item())
    order = np.random.default_rng(3).permutation(len(parts)).tolist()
    together = poisoned(len(parts), dtype=torch.int64)
    rows = SamplingBatch(tuple(parts[i][1] for i in order))
    sample(torch.stack([parts[i][0] for i in order]), rows, together)
    assert together.tolist() == [alone[i] for i in order]


@pytest.mark.parametrize("case", CASES["sample"], ids=lambda case: case.name)
def test_the_token_is_the_draw_from_the_whole_distribution(case: Case) -> None:
    logits, row, _ = _parts(case, seed=5)
    whole = distribution(logits, row)
    out = poisoned(1, dtype=torch.int64)
    for position in range(3 if case.vocab > 1000 else 40):
        sample(logits[None], SamplingBatch((replace(row, position=position),)), out)
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
    logits, row, parameters = _parts(case)
    draws = 3000
    counts = np.zeros(case.vocab)
    out = poisoned(1, dtype=torch.int64)
    for position in range(draws):
        sample(logits[None], SamplingBatch((replace(row, seed=99, position=position),)), out)
        counts[out.item()] += 1
    expected = np.zeros(case.vocab)
    for token, probability in oracle.distribution(logits.tolist(), parameters):
        expected[token] = probability * draws
    assert _chi_square(counts, expected) < 31.3  # 11 degrees of freedom (the most here), p = 0.001


def test_the_draw_is_the_first_running_sum_above_u() -> None:
    source = distribution(torch.tensor([0.0, np.log(2.0), 0.0]), SamplingRow())
    assert source.ids.tolist() == [1, 0, 2]
    assert [draw(source, u) for u in (1e-16, 0.49, 0.51, 0.74, 0.76, 1 - 1e-16)] == [1, 1, 0, 0, 2, 2]


def test_a_row_without_a_token_is_an_error_that_names_it_and_writes_nothing() -> None:
    nothing = allow_only([], 40)
    out = poisoned(2, dtype=torch.int64)
    before = out.clone()
    for bad in (SamplingRow(mask=nothing), SamplingRow(mask=nothing, temperature=0.0, top_k=3)):
        with pytest.raises(ValueError, match="row 1"):
            sample(torch.zeros(2, 40), SamplingBatch((SamplingRow(), bad)), out)
    with pytest.raises(ValueError, match="row 0"):
        sample(torch.full((2, 40), float("nan")), SamplingBatch((SamplingRow(), SamplingRow())), out)
    assert torch.equal(out, before)


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
        ("position", 2**64),
        ("output_ids", torch.zeros(1, dtype=torch.int64)),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: object) -> None:
    expected = "output_counts" if name == "output_ids" else name
    with pytest.raises(ValueError, match=f"sample: {expected} must be"):
        SamplingRow(**{name: value})


def test_ids_outside_the_vocabulary_are_refused() -> None:
    row = SamplingRow(prompt_ids=torch.tensor([40]))
    with pytest.raises(ValueError, match="prompt_ids must lie in"):
        sample(torch.zeros(1, 40), SamplingBatch((row,)), poisoned(1, dtype=torch.int64))
