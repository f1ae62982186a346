"""embedding and the views, tables and direct tensors of `weights`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.artifact import codec
from ninfer.artifact.formats import Format
from ninfer.errors import ArtifactError, ConfigError
from ninfer.kernels import embedding, linear
from ninfer.kernels.embedding import IMPLEMENTATIONS, cases, compiled_cpu, oracle
from ninfer.kernels.native import body_for, record
from ninfer.kernels.tolerances import EXACT, MATMUL
from ninfer.kernels.weights import WeightView, prepare_dense, prepare_linear, prepare_table
from tests.kernels.harness import Trial, compare, conform, poisoned, routes_here, same_bits
from tests.kernels.weight_samples import view

FORMATS = [fmt for fmt in Format if fmt is not Format.INT32]


def _ids(tokens: int, rows: int) -> torch.Tensor:
    ids = torch.randint(rows, (tokens,), generator=torch.Generator().manual_seed(tokens))
    ids[0] = rows - 1
    return ids


@pytest.mark.parametrize("case", cases.CASES["embedding"], ids=lambda case: case.name)
def test_every_route_matches_the_oracle(case: cases.Case) -> None:
    stored = view(case.format, (case.parent_rows, case.columns), case.begin, case.end)
    table, ids, out = prepare_table(stored), _ids(case.tokens, stored.rows), poisoned(case.tokens, case.columns)
    trial = Trial(
        {"ids": ids, "data": stored.data},
        {"out": out},
        lambda route: IMPLEMENTATIONS["embedding"][route](ids, table, out),
        {"out": oracle.embedding(ids.numpy(), stored.data.numpy(), case.format, stored.shape, case.begin)},
        {"out": EXACT},
    )
    conform(trial, routes_here(IMPLEMENTATIONS["embedding"], compiled_cpu.SOURCE))


@pytest.mark.parametrize("fmt", FORMATS)
def test_lookups_have_the_bits_of_the_codec(fmt: Format) -> None:
    stored = view(fmt, (128, 192), seed=3)
    ids, out = torch.arange(128).flip(0), poisoned(128, 192)
    embedding(ids, prepare_table(stored), out)
    decoded = torch.from_numpy(codec.decode(stored.data.numpy(), fmt, (128, 192)))
    assert same_bits(out, decoded.flip(0))


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_tied_table_and_head_represent_the_same_values(fmt: Format) -> None:
    stored = view(fmt, (128, 64), seed=4)
    rows, columns = poisoned(128, 64), poisoned(64, 128)
    embedding(torch.arange(128), prepare_table(stored), rows)
    linear(torch.eye(64), prepare_linear([stored]), columns)
    compare("head", columns.t(), rows.double().numpy(), MATMUL)


def test_a_row_has_its_own_bits_wherever_it_is_looked_up() -> None:
    table = prepare_table(view(Format.Q6, (50, 130)))
    ids, together = _ids(300, 50), poisoned(300, 130)
    embedding(ids, table, together)
    for position in (0, 1, 7, 299):
        alone = poisoned(1, 130)
        embedding(ids[position : position + 1].clone(), table, alone)
        assert same_bits(together[position : position + 1], alone)


@pytest.mark.skipif(body_for(compiled_cpu.SOURCE) is None, reason="no C++ compiler")
def test_a_tape_looks_up_the_ids_that_it_finds() -> None:
    table, out = prepare_table(view(Format.Q4, (50, 130))), poisoned(3, 130)
    ids, wanted = torch.zeros(3, dtype=torch.int64), poisoned(3, 130)
    with record() as tape:
        embedding(ids, table, out)
    ids.copy_(torch.tensor([7, 49, 7]))
    tape.run()
    embedding(ids, table, wanted)
    assert same_bits(out, wanted)


def test_reads_mapped_memory_without_touching_it() -> None:
    stored = view(Format.Q5, (20, 130))
    stored.data.numpy().setflags(write=False)
    embedding(_ids(5, 20), prepare_table(stored), poisoned(5, 130))


def test_no_tokens_is_no_work() -> None:
    embedding(torch.empty(0, dtype=torch.int64), prepare_table(view(Format.Q8, (4, 64))), poisoned(0, 64))


@pytest.mark.parametrize("bad", [-1, 7])
def test_ids_outside_the_table_are_refused(bad: int) -> None:
    out = poisoned(2, 64)
    with pytest.raises(ValueError, match=r"lie in \[0, 7\)"):
        embedding(torch.tensor([0, bad]), prepare_table(view(Format.BF16, (20, 64), 3, 10)), out)
    assert out.isnan().all()


def test_nvfp4_is_taken_whole() -> None:
    data = view(Format.NVFP4, (256, 64)).data
    with pytest.raises(ConfigError, match="whole parent"):
        WeightView(Format.NVFP4, (256, 64), 0, 128, data)


def test_views_check_their_bytes_and_rows() -> None:
    data = view(Format.Q4, (4, 64)).data
    with pytest.raises(ConfigError, match="expected"):
        WeightView(Format.Q4, (4, 64), 0, 4, data[:-1])
    for begin, end in ((0, 5), (2, 2), (-1, 2)):
        with pytest.raises(ConfigError, match="no range"):
            WeightView(Format.Q4, (4, 64), begin, end, data)


def test_integer_matrices_are_no_weights() -> None:
    integers = WeightView(Format.INT32, (2, 2), 0, 2, torch.zeros(16, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="int32"):
        prepare_table(integers)
    with pytest.raises(ConfigError, match="int32"):
        prepare_linear([integers])


@pytest.mark.parametrize(("fmt", "dtype"), [(Format.BF16, torch.float32), (Format.FP32, torch.float32)])
def test_direct_floats_are_widened_exactly(fmt: Format, dtype: torch.dtype) -> None:
    values = np.random.default_rng(0).standard_normal((3, 5, 2)).astype(np.float32)
    dense = prepare_dense(torch.from_numpy(codec.encode(values, fmt)), fmt, (3, 5, 2))
    wanted = torch.from_numpy(values)
    assert dense.dtype is dtype
    assert torch.equal(dense, wanted.bfloat16().float() if fmt is Format.BF16 else wanted)


def test_direct_integers_stay_integers() -> None:
    values = np.array([3, -7, 2**31 - 1], np.int32)
    dense = prepare_dense(torch.from_numpy(codec.encode(values, Format.INT32)), Format.INT32, (3,))
    assert dense.tolist() == values.tolist()
    assert dense.dtype is torch.int32


def test_prepare_dense_refuses_what_is_not_direct() -> None:
    with pytest.raises(ConfigError, match="q4"):
        prepare_dense(view(Format.Q4, (4, 64)).data, Format.Q4, (4, 64))
    with pytest.raises(ArtifactError, match="bytes"):
        prepare_dense(torch.zeros(3, dtype=torch.uint8), Format.BF16, (2,))
