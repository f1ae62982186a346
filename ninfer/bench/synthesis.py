"""Prompts of a given length in tokens, the same on every run and machine."""

from __future__ import annotations

import string
from collections.abc import Sequence
from random import Random

from ninfer.bench.trace import MOONCAKE_BLOCK_TOKENS, TokenCount

POOL_TEXT = " ".join((*string.ascii_letters, *string.digits, *string.punctuation, "the quick brown fox jumps over"))
"""Text whose tokens are plain tokens in every vocabulary."""


def synthesise(count: TokenCount, name: str, pool: Sequence[int]) -> tuple[int, ...]:
    """Token ids drawn from `pool` for a prompt; equal block ids give equal tokens.

    Tokens beyond the prompt's blocks are drawn from `name`, so that prompts of different names share nothing there.
    """
    parts = [_draw(f"block {block}", MOONCAKE_BLOCK_TOKENS, pool) for block in count.blocks]
    known = len(parts) * MOONCAKE_BLOCK_TOKENS
    if known < count.tokens:
        parts.append(_draw(f"prompt {name}", count.tokens - known, pool))
    return tuple(token for part in parts for token in part)[: count.tokens]


def _draw(key: str, length: int, pool: Sequence[int]) -> list[int]:
    """Python seeds from text by SHA-512 and draws by floor(random() * n): both fixed across versions."""
    return Random(key).choices(pool, k=length)
