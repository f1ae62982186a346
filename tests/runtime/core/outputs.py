"""A scripted output session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.types import Channel, Delta, Event, FinishReason, TokenLogprob
from tests.fakes import LogEntry


@dataclass(frozen=True)
class FakePreview:
    """See OutputPreview; `base` is the state that it was made from."""

    base: int
    accepted: int
    finish: FinishReason | None
    control: tuple[int, ...]
    boundaries: tuple[int, ...]
    events: tuple[Event, ...]
    held: str


class FakeOutput:
    """Renders token t as `<t>`. Positions count output tokens of this request, forced ones included.

    stop_at: the token at this position ends the answer (STOP). controls: after so many tokens these are forced.
    hold: the text of each span's last token comes one span later (or with `flush`). fail_preview_at/fail_commit_at:
    raise when the span contains that position.
    """

    def __init__(
        self,
        log: list[LogEntry] | None = None,
        name: object = "",
        stop_at: int | None = None,
        controls: dict[int, tuple[int, ...]] | None = None,
        hold: bool = False,
        fail_preview_at: int | None = None,
        fail_commit_at: int | None = None,
        fail_flush: bool = False,
    ) -> None:
        self._log = [] if log is None else log
        self._name = name
        self._stop_at = stop_at
        self._controls = controls or {}
        self._hold = hold
        self._fail_preview_at = fail_preview_at
        self._fail_commit_at = fail_commit_at
        self._fail_flush = fail_flush
        self._held = ""
        self.tokens = 0
        self.flushes = 0

    def preview(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], forced: bool) -> FakePreview:
        self._log.append(("preview", self._name, tuple(tokens), forced))
        span = range(self.tokens, self.tokens + len(tokens))
        if self._fail_preview_at in span:
            raise RuntimeError("scripted preview failure")
        stops = self._stop_at in span
        accepted = span.index(self._stop_at) + 1 if stops and self._stop_at is not None else len(tokens)
        kept = [f"<{token}>" for token in tokens[:accepted]]
        held = kept.pop() if self._hold and not stops else ""
        text = self._held + "".join(kept)
        delta = Delta(Channel.CONTENT, text, tuple(tokens[:accepted]), tuple(logprobs[:accepted]))
        control = () if stops else self._controls.get(self.tokens + accepted, ())
        finish = FinishReason.STOP if stops else None
        return FakePreview(self.tokens, accepted, finish, control, (accepted,), (delta,), held)

    def commit(self, preview: FakePreview) -> None:
        self._log.append(("output_commit", self._name, preview.accepted))
        assert preview.base == self.tokens, "a preview of another state was committed"
        if self._fail_commit_at in range(self.tokens, self.tokens + preview.accepted):
            raise RuntimeError("scripted commit failure")
        self.tokens += preview.accepted
        self._held = preview.held

    def flush(self) -> tuple[Event, ...]:
        self._log.append(("flush", self._name))
        self.flushes += 1
        if self._fail_flush:
            raise RuntimeError("scripted flush failure")
        held, self._held = self._held, ""
        return (Delta(Channel.CONTENT, held),) if held else ()
