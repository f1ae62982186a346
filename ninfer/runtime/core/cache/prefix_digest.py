"""Digests of the leading tokens of a history. They only shortlist; exact comparison is Program's."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

DIGEST_BYTES = 16
WORD_BYTES = array("i").itemsize


def prefix_digests(tokens: Sequence[int], identity: bytes, frontiers: Iterable[int]) -> dict[int, bytes]:
    """BLAKE2b of `identity` and the first f tokens (as i32 words), for every frontier f ≤ len(tokens). One pass."""
    words = memoryview((tokens if isinstance(tokens, array) else array("i", tokens)).tobytes())
    running = blake2b(len(identity).to_bytes(8, "little") + identity, digest_size=DIGEST_BYTES)
    digests, position = {}, 0
    for frontier in sorted({f for f in frontiers if 0 <= f <= len(tokens)}):
        running.update(words[position * WORD_BYTES : frontier * WORD_BYTES])
        digests[frontier] = running.copy().digest()
        position = frontier
    return digests


def domain_digest(session_key: str | None, order: int) -> bytes:
    """The reuse domain of a request: its session key's digest, or the request itself when it has none."""
    name = f"request {order}" if session_key is None else f"session {session_key}"
    return blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()
