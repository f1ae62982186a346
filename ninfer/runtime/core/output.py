"""The OutputSession protocol: what the control plane may ask of one request's output semantics.

Frontend implements it structurally. `preview` has no effect; only `commit` changes the session, and Engine calls it
after Program has committed the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ninfer.types import Event, FinishReason, TokenLogprob


class OutputPreview(Protocol):
    """The effect that a span of tokens would have."""

    @property
    def accepted(self) -> int:
        """How many of the tokens (≥ 1) would be kept."""
        ...

    @property
    def finish(self) -> FinishReason | None:
        """Why they would end the answer, if they would."""
        ...

    @property
    def control(self) -> tuple[int, ...]:
        """Forced tokens asked for next; empty for none."""
        ...

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Cut positions inside the accepted span, relative to its first token."""
        ...

    @property
    def events(self) -> tuple[Event, ...]:
        """What the commit would publish."""
        ...


PreviewT = TypeVar("PreviewT", bound=OutputPreview)


class OutputSession(Protocol[PreviewT]):
    """Output semantics of one request."""

    def preview(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], forced: bool) -> PreviewT:
        """What these tokens (a decode span, or a forced control span) would do. No effect."""
        ...

    def commit(self, preview: PreviewT) -> None:
        """Adopt a preview made from the current state."""
        ...

    def flush(self) -> tuple[Event, ...]:
        """End of the answer for a reason outside the session (budget, cancel): text still held back."""
        ...
