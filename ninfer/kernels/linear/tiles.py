"""Row tiles of one fixed height: what makes a matrix product's bits independent of the number of rows.

Libraries choose another kernel, and with it another order of additions, for another number of rows: torch's
`x @ W.T` (MKL) gives a row different bits among 1, 2 or 3 rows than among 4 or more, and with two threads also
among 5, 6 or 7. So every product is computed on exactly `TILE_ROWS` rows, the last tile padded with zeros.

Measured on torch 2.13 with AVX2, K from 1 to 5120, N from 1 to 3584, odd ones included: within tiles of 4, 8, 16
and 32 rows, a row's bits depend neither on its position nor on its neighbours, by either route, and oneDNN's are
moreover equal at every height from 1 to 300. Cost per call in ms on one thread of a busy machine, [K -> N]:

    rows                    1 (gemv)      4       8      16      32
    [256 -> 768]     MKL      0.03     0.06    0.08    0.11    0.18
                     oneDNN   0.05     0.06    0.07    0.11    0.18
    [1024 -> 3584]   MKL      0.4      2.0     2.4     2.9     4.5
                     oneDNN   0.5      0.9     1.4     2.5     4.2
    [1024 -> 248320] MKL       77      289     296     379     488
                     oneDNN   139      178     218     256     467

Eight rows cost a lone row at most some three times its own price, serve a decode batch of eight in one tile, and
leave prefill within a factor of two of the widest tiles.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

TILE_ROWS = 8


def multiply_by_tiles(
    x: torch.Tensor,
    product: Callable[[torch.Tensor], torch.Tensor],
    out: torch.Tensor,
    residual: torch.Tensor | None,
) -> None:
    """out [T, N] = product(x [T, K]) (+ residual), where `product` only ever sees `TILE_ROWS` rows.

    `out` may be `residual` itself.
    """
    rows = x.shape[0]
    whole = rows - rows % TILE_ROWS
    for begin in range(0, whole, TILE_ROWS):
        end = begin + TILE_ROWS
        _store(product(x[begin:end]), out[begin:end], None if residual is None else residual[begin:end])
    if whole < rows:
        tile = x.new_zeros((TILE_ROWS, x.shape[1]))
        tile[: rows - whole] = x[whole:]
        part = product(tile)[: rows - whole]
        _store(part, out[whole:], None if residual is None else residual[whole:])


def _store(part: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    if residual is None:
        out.copy_(part)
    else:
        torch.add(part, residual, out=out)
