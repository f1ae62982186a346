"""Philox4x32-10, a counter-based random generator: the same (seed, position, purpose) always gives the same bits.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11, and the known answers that its
authors publish with Random123. There is no state to advance, so a draw cannot depend on the batch row that
asks for it or on the draws of other requests.
"""

from __future__ import annotations

import enum

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[int, int, int, int]


class Purpose(enum.IntEnum):
    """What a draw decides. Different purposes at one position are independent streams."""

    TOKEN = 0
    """The next token of ordinary sampling."""
    ACCEPT = 1
    """Whether a drafted token is accepted."""
    RESIDUAL = 2
    """The token that replaces a rejected draft."""
    DRAFT = 3
    """A drafter's own choice among its candidates."""


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """The ten-round bijection: four 32-bit words of counter and two of key to four random 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        left, right = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & _WORD, (left >> 32) ^ c3 ^ k1, left & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """One number strictly between 0 and 1, with 52 random bits.

    The key is the 64-bit seed; the counter is (position's low and high word, purpose, 0). The value is
    (n + 1/2) / 2**52, which fp64 represents exactly.

    Raises:
        ValueError: seed or position is outside [0, 2**64).
    """
    if not (0 <= seed < 1 << 64 and 0 <= position < 1 << 64):
        raise ValueError(f"philox: seed and position must be in [0, 2**64), got {seed} and {position}")
    counter = (position & _WORD, position >> 32, int(purpose), 0)
    first, second, _, _ = philox4x32(counter, (seed & _WORD, seed >> 32))
    return (((first << 32 | second) >> 12) + 0.5) / (1 << 52)
