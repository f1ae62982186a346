"""The OutputSession protocol: what the control plane may ask of one request's output semantics.

Frontend implements it. `preview` has no effect; only `commit` changes the session, and Engine calls it after Program
has committed the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ninfer.types import Event, FinishReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class OutputPreview:
    """The effect a span of tokens would have.

    `accepted` tokens (≥ 1) would be kept; `finish` is set if they end the answer; `control` asks for forced tokens
    next; `boundaries` are cut positions inside the accepted span, relative to its first token; `next_state` is the session's
    own provisional state, opaque to everyone else; `events` is what the commit would publish.
    """

    accepted: int
    finish: FinishReason | None
    control: tuple[int, ...]
    boundaries: tuple[int, ...]
    events: tuple[Event, ...]
    next_state: object


class OutputSession(Protocol):
    """Output semantics of one request."""

    def preview(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], forced: bool) -> OutputPreview:
        """What these tokens (a decode span, or a forced control span) would do. No effect."""
        ...

    def commit(self, preview: OutputPreview) -> None:
        """Adopt a preview made from the current state."""
        ...

    def flush(self) -> tuple[Event, ...]:
        """End of the answer for a reason outside the session (budget, cancel): text still held back."""
        ...
