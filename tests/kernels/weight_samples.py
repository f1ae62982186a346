"""Random stored matrices of every format, for tests of the ops that read weights."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import geometry
from ninfer.kernels.weights import LinearWeight, WeightView, prepare_linear


def stored_matrix(fmt: Format, shape: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """The bytes of a random object; scales vary by group, and some groups are all zero."""
    rng = np.random.default_rng(seed)
    if fmt is Format.T2:
        return _ternary(shape, rng)
    if fmt is Format.NVFP4:
        codes = rng.integers(0, 16, shape, dtype=np.uint8)
        scales = rng.integers(0, 0x7E, (shape[0], shape[1] // 16), dtype=np.uint8)
        return codec.pack_nvfp4(codes, scales, 1234.5)
    spread = 10.0 ** rng.uniform(-2, 0, (shape[0], 1))
    values = (rng.standard_normal(shape) * spread).astype(np.float32)
    values[shape[0] // 2, : shape[1] // 2] = 0
    return codec.encode(values, fmt)


def view(fmt: Format, shape: tuple[int, int], begin: int = 0, end: int | None = None, seed: int = 0) -> WeightView:
    """Rows of a random stored matrix."""
    data = torch.from_numpy(stored_matrix(fmt, shape, seed))
    return WeightView(fmt, shape, begin, shape[0] if end is None else end, data)


def fp32_weight(rows: int, columns: int, seed: int, spread: float = 1.0) -> LinearWeight:
    """A random weight prepared from an fp32 object by the best route."""
    return prepare_linear([fp32_view(rows, columns, seed, spread)])


def fp32_view(rows: int, columns: int, seed: int, spread: float = 1.0) -> WeightView:
    """All rows of a random fp32 matrix with unit-variance products, times `spread`."""
    values = normal(rows, columns, seed=seed, spread=spread * columns**-0.5)
    return WeightView(Format.FP32, (rows, columns), 0, rows, values.view(torch.uint8).flatten())


def represented(part: WeightView) -> NDArray[np.float64]:
    """The values that a view represents, by the artifact's codec."""
    rows: NDArray[np.float64] = codec.decode(part.data.numpy(), part.format, part.shape)[
        part.row_begin : part.row_end
    ].astype(np.float64)
    return rows


def normal(*shape: int, seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    """A reproducible normal tensor."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def _ternary(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.uint8]:
    codes = rng.integers(-1, 2, shape, dtype=np.int8)
    groups = -(-shape[1] // Format.T2.spec.group)
    scales = rng.uniform(0.01, 1, (shape[0], groups)).astype(np.float16).view(np.uint16)
    return codec.assemble(geometry(Format.T2, shape), codec.pack_grouped(codes, scales, Format.T2))
