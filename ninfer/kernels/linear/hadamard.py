"""The signed Walsh-Hadamard transform of activations whose weight was stored in the rotated basis."""

from __future__ import annotations

import torch

BLOCK = 1024


def rotate(x: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """H(diag(s) x) per block of 1024 columns, H the normalised Sylvester matrix; a fresh tensor.

    Ten stages of sums and differences, each element by element, so a row's bits are its own. 1/sqrt(1024) is
    a power of two, hence exact.

    Args:
        x: f32[T, K], K a multiple of 1024.
        signs: f32[K] of +1 and -1.
    """
    rows, columns = x.shape
    values = x * signs
    span = 1
    while span < BLOCK:
        pairs = values.view(rows, columns // (2 * span), 2, span)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        values = torch.stack((low + high, low - high), dim=2)
        span *= 2
    return values.view(rows, columns).mul_(BLOCK**-0.5)


def rotated(x: torch.Tensor, signs: torch.Tensor | None) -> torch.Tensor:
    """x itself without signs, else its rotation."""
    return x if signs is None else rotate(x, signs)
