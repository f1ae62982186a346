"""embedding's CUDA kernel in the emulator: the codec's bits, whatever the format, and ids that only the kernel sees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ninfer.artifact import codec
from ninfer.artifact.formats import Format
from ninfer.kernels import embedding
from ninfer.kernels.embedding import IMPLEMENTATIONS, cases, oracle
from ninfer.kernels.jit import record, using
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import EXACT
from ninfer.kernels.weights import prepare_dense, prepare_table
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, conform, poisoned, same_bits
from tests.kernels.weight_samples import view

pytestmark = NEEDS_EMULATOR
FORMATS = [fmt for fmt in Format if fmt is not Format.INT32]


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with using(Emulator("check", order="sticky")):
        yield


def _ids(tokens: int, rows: int) -> torch.Tensor:
    ids = torch.randint(rows, (tokens,), generator=torch.Generator().manual_seed(tokens))
    ids[0] = rows - 1
    return ids


@pytest.mark.parametrize("case", cases.CASES["embedding"], ids=lambda case: case.name)
def test_every_case_matches_the_oracle(case: cases.Case) -> None:
    stored = view(case.format, (case.parent_rows, case.columns), case.begin, case.end)
    table, ids, out = prepare_table(stored), _ids(case.tokens, stored.rows), poisoned(case.tokens, case.columns)
    trial = Trial(
        {"ids": ids, "data": stored.data},
        {"out": out},
        lambda route: IMPLEMENTATIONS["embedding"][route](ids, table, out),
        {"out": oracle.embedding(ids.numpy(), stored.data.numpy(), case.format, stored.shape, case.begin)},
        {"out": EXACT},
    )
    conform(trial, (Route.CUDA,))


@pytest.mark.parametrize("fmt", FORMATS)
def test_lookups_have_the_bits_of_the_codec(fmt: Format) -> None:
    stored = view(fmt, (128, 192), seed=3)
    ids, out = torch.arange(0, 128, 9).flip(0), poisoned(15, 192)
    embedding(ids, prepare_table(stored), out)
    assert same_bits(out, torch.from_numpy(codec.decode(stored.data.numpy(), fmt, (128, 192)))[ids])


def test_a_recording_looks_up_the_ids_that_it_finds() -> None:
    table, ids, out, wanted = prepare_table(view(Format.Q6, (50, 130))), _ids(3, 50), poisoned(3, 130), poisoned(3, 130)
    recording = record(lambda: embedding(ids, table, out))
    ids.copy_(torch.tensor([7, 49, 7]))
    recording.run()
    embedding(ids, table, wanted)
    assert same_bits(out, wanted)


def test_an_unknown_id_gives_nan_and_reads_nothing() -> None:
    table, out = prepare_table(view(Format.BF16, (20, 64), 3, 10)), poisoned(3, 64)
    out.zero_()
    embedding(torch.tensor([-1, 2, 7]), table, out)
    assert out[0].isnan().all()
    assert out[2].isnan().all()
    assert out[1].isfinite().all()


def test_no_tokens_is_no_work() -> None:
    embedding(torch.empty(0, dtype=torch.int64), prepare_table(view(Format.Q8, (4, 64))), poisoned(0, 64))


def test_direct_tensors_stay_where_they_are() -> None:
    stored = view(Format.BF16, (4, 64))
    dense = prepare_dense(stored.data, Format.BF16, (4, 64))
    assert dense.device == stored.data.device
    assert same_bits(dense, torch.from_numpy(codec.decode(stored.data.numpy(), Format.BF16, (4, 64))))
