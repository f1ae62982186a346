"""Bitsets over token ids: bit i % 32 of int32 word i // 32 is set when token i is allowed (XGrammar's layout)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch


def mask_words(vocab: int) -> int:
    """The int32 words of one mask over `vocab` ids."""
    return -(-vocab // 32)


def allow_only(ids: Iterable[int], vocab: int) -> torch.Tensor:
    """The mask, int32 [mask_words(vocab)], that allows exactly these ids.

    Raises:
        ValueError: an id is outside [0, vocab).
    """
    chosen = np.fromiter(ids, np.int64)
    outside = chosen[(chosen < 0) | (chosen >= vocab)]
    if outside.size:
        raise ValueError(f"mask: token id {outside[0]} is outside [0, {vocab})")
    bits = np.zeros(mask_words(vocab) * 32, dtype=np.uint8)
    bits[chosen] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little").view("<i4").astype(np.int32))


def allowed(mask: torch.Tensor, vocab: int) -> torch.Tensor:
    """Masks int32 [..., mask_words(vocab)] opened to bool [..., vocab]; bits past the vocabulary are ignored."""
    octets = np.ascontiguousarray(mask.numpy().astype("<i4", copy=False)).view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, count=vocab, bitorder="little")
    return torch.from_numpy(bits).to(torch.bool)
