"""Products with stored weights of every format, and lookups in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ops.linear import FORMATS, random_bytes

from gpu.checks.outcome import Outcome, Sizes, as_numpy, outcome, rounded
from ninfer.artifact.formats import Format
from ninfer.kernels import (
    embedding,
    gate_up_swiglu,
    linear,
    projections,
)
from ninfer.kernels import tolerances as within
from ninfer.kernels.embedding import oracle as embedding_oracle
from ninfer.kernels.linear import oracle as linear_oracle
from ninfer.kernels.mlp import oracle as mlp_oracle
from ninfer.kernels.moe import oracle as moe_oracle
from ninfer.kernels.weights import WeightView, prepare_linear, prepare_table


def check_linears(sizes: Sizes) -> Iterator[Outcome]:
    for fmt in FORMATS.values():
        for columns in (sizes.geometry.hidden, sizes.geometry.intermediate):
            rows = -(-sizes.rows // 128) * 128 if fmt is Format.NVFP4 else sizes.rows + 5
            view, stored = stored_weight(fmt, rows, columns)
            weight, multiplied = prepare_linear([view]), product_with(stored)
            for tokens in sizes.tokens:
                x, residual = torch.randn(tokens, columns), torch.randn(tokens, rows)
                out = residual.clone()
                linear(x, weight, out, out)
                wanted = multiplied(as_numpy(x)) + as_numpy(residual).astype(np.float64)
                yield outcome("linear", f"{fmt.name} {columns} x {tokens}", out, wanted, within.MATMUL)


def stored_weight(fmt: Format, rows: int, columns: int) -> tuple[WeightView, linear_oracle.StoredRows]:
    data = random_bytes(fmt, (rows, columns), 0.01)
    stored = linear_oracle.StoredRows(fmt, (rows, columns), 0, rows, as_numpy(data))
    return WeightView(fmt, (rows, columns), 0, rows, data), stored


def product_with(stored: linear_oracle.StoredRows) -> moe_oracle.Linear:
    """The oracle's product with one weight, decoded once, of activations as the kernels round them."""
    weight = linear_oracle.represented([stored])

    def product(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return rounded(torch.from_numpy(x), stored.format).astype(np.float64) @ weight.T

    return product


def check_fused(sizes: Sizes) -> Iterator[Outcome]:
    hidden, half = sizes.geometry.hidden, sizes.rows // 2
    for fmt in (Format.Q4, Format.BF16):
        views = [stored_weight(fmt, rows, hidden) for rows in (half, half, 24, 7)]
        pair = prepare_linear([views[0][0], views[1][0]])
        weights, products = [prepare_linear([view]) for view, _ in views], [product_with(stored) for _, stored in views]
        for tokens in sizes.tokens:
            x = torch.randn(tokens, hidden)
            out, outs = torch.empty(tokens, half), [torch.empty(tokens, w.rows) for w in weights]
            gate_up_swiglu(x, pair, out)
            represented = linear_oracle.represented([stored for _, stored in views[:2]])
            wanted = mlp_oracle.gate_up_swiglu(rounded(x, fmt), represented)
            yield outcome("gate_up_swiglu", f"{fmt.name} x {tokens}", out, wanted, within.MATMUL_CHAIN)
            projections(x, weights, outs)
            for got, multiplied in zip(outs, products, strict=True):
                wanted = multiplied(as_numpy(x))
                yield outcome("projections", f"{fmt.name} {got.shape[1]} x {tokens}", got, wanted, within.MATMUL)


def check_embedding(sizes: Sizes) -> Iterator[Outcome]:
    for fmt in FORMATS.values():
        rows, hidden = -(-sizes.rows // 128) * 128, sizes.geometry.hidden
        view, stored = stored_weight(fmt, rows, hidden)
        ids = torch.randint(0, rows, (sizes.prompt,))
        out = torch.empty(len(ids), hidden)
        embedding(ids, prepare_table(view), out)
        wanted = embedding_oracle.embedding(as_numpy(ids), stored.data, fmt, (rows, hidden), 0)
        yield outcome("embedding", fmt.name, out, wanted, within.EXACT)


CHECKS = (
    check_linears,
    check_fused,
    check_embedding,
)
