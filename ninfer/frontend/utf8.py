"""Incremental UTF-8 decoding as a pure function."""

from __future__ import annotations

import codecs


def decode_step(undecoded: bytes, data: bytes) -> tuple[str, bytes]:
    """The text that `undecoded + data` settles, and the incomplete sequence (at most 3 bytes) left at its end.

    Joining all texts, and decoding the last remainder with `finish`, gives `bytes.decode("utf-8", "replace")` of the
    whole, however the bytes are cut.
    """
    text, used = codecs.utf_8_decode(undecoded + data, "replace", False)
    return text, (undecoded + data)[used:]


def finish(undecoded: bytes) -> str:
    """The text of an incomplete sequence when nothing follows."""
    return undecoded.decode("utf-8", "replace")
