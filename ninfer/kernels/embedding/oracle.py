"""Oracle of embedding: the whole table decoded by the artifact's codec, then indexed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.formats import Format


def embedding(
    token_ids: NDArray[np.int64], data: NDArray[np.uint8], fmt: Format, shape: tuple[int, int], row_begin: int
) -> NDArray[np.float64]:
    """out [T, H] of the contract; the table starts at row `row_begin` of the stored parent of `shape`."""
    rows: NDArray[np.float64] = codec.decode(data, fmt, shape)[row_begin + token_ids].astype(np.float64)
    return rows
