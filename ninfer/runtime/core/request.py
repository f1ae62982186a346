"""The request record: one request's state inside the control plane. Only the worker changes it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from ninfer.runtime.core.channel import Failure, ResponseChannel
from ninfer.runtime.core.output import OutputPreview, OutputSession
from ninfer.runtime.core.program import CheckpointHandle, SequenceDemand, SequenceHandle
from ninfer.types import CacheUse, CheckpointKind, FinishReason, Reuse, Timings, Usage


class RequestState(enum.Enum):
    """The stable states a request passes through."""

    WAITING = "waiting"
    MATERIALISING = "materialising"
    PREFILL = "prefill"
    DECODE_READY = "decode_ready"
    CONTROL_READY = "control_ready"
    TERMINAL_PENDING = "terminal_pending"
    FINISHED = "finished"


_ACTIVE = (RequestState.DECODE_READY, RequestState.CONTROL_READY, RequestState.TERMINAL_PENDING)

_NEXT: dict[RequestState, tuple[RequestState, ...]] = {
    RequestState.WAITING: (RequestState.MATERIALISING, RequestState.FINISHED),
    RequestState.MATERIALISING: (RequestState.PREFILL, RequestState.FINISHED),
    RequestState.PREFILL: _ACTIVE,
    RequestState.DECODE_READY: _ACTIVE,
    RequestState.CONTROL_READY: _ACTIVE,
    RequestState.TERMINAL_PENDING: (RequestState.FINISHED,),
    RequestState.FINISHED: (),
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request will end once its resources are settled.

    `last` is the preview of the final span: Program has committed it, the output session has not yet. `flush` asks the
    session for the text it still holds back, because the answer was cut by something it does not know of.
    """

    reason: FinishReason
    failure: Failure | None = None
    last: OutputPreview | None = None
    flush: bool = False


@dataclass(frozen=True, slots=True)
class CapturePoint:
    """A checkpoint to be made when `frontier` tokens are consumed. `spare_only`: it may not displace another one."""

    frontier: int
    kind: CheckpointKind
    spare_only: bool = False


@dataclass(slots=True)
class Continuation:
    """What an active request means to the prefix cache.

    `owner` is the continuation that its checkpoints belong to, `domain` its reuse domain, `below` the longest
    checkpoint on its path so far. `points` are still to be captured, by ascending frontier; `digests` are those of its
    prompt there.
    """

    owner: int
    domain: bytes
    below: CheckpointHandle | None
    points: list[CapturePoint] = field(default_factory=list)
    digests: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One accepted request. `order` is its publication order: unique, and increasing with submission.

    `outputs` are the output tokens that Program has committed. `continuation` is None for a request that feeds no
    cache.
    """

    order: int
    demand: SequenceDemand
    output: OutputSession[Any]
    channel: ResponseChannel
    submitted_at: float
    deadline_at: float | None = None
    session_key: str | None = None
    cache: CacheUse = CacheUse.READ_WRITE
    state: RequestState = RequestState.WAITING
    lane: int | None = None
    sequence: SequenceHandle | None = None
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    completion_tokens: int = 0
    control: tuple[int, ...] = ()
    outputs: list[int] = field(default_factory=list)
    reuse: Reuse | None = None
    continuation: Continuation | None = None
    ending: Ending | None = None
    stale_plans: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None

    def move(self, state: RequestState) -> None:
        """Enter the next state; only the transitions of the state machine exist."""
        assert state in _NEXT[self.state], f"request {self.order}: {self.state} cannot become {state}"
        self.state = state

    def end(self, ending: Ending) -> None:
        """An active request stops executing; its resources are still to be settled."""
        self.ending = ending
        self.move(RequestState.TERMINAL_PENDING)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.demand.prompt.token_ids)

    @property
    def unread_prompt(self) -> int:
        """Prompt tokens still to be prefilled."""
        return self.prompt_tokens - self.reused_tokens - self.prefilled_tokens

    @property
    def next_capture(self) -> int | None:
        """The prompt position at which the next checkpoint is to be made; prefill stops there."""
        going = self.continuation
        return going.points[0].frontier if going is not None and going.points else None

    @property
    def capture_due(self) -> bool:
        """True if a checkpoint is to be made before any more of the prompt is consumed."""
        position = self.reused_tokens + self.prefilled_tokens
        return self.state is RequestState.PREFILL and self.next_capture == position

    @property
    def budget(self) -> int:
        """Output tokens that may still be accepted."""
        return self.demand.max_new_tokens - self.completion_tokens

    def stop_reason(self, now: float) -> FinishReason | None:
        """Why this request must stop at this boundary although it could go on."""
        if self.channel.cancel_requested:
            return FinishReason.CANCELLED
        if self.deadline_at is not None and self.deadline_at <= now:
            return FinishReason.DEADLINE
        return None

    def accept(self, tokens: int, now: float) -> None:
        """Account for output tokens that Program has committed."""
        self.completion_tokens += tokens
        self.last_token_at = now
        if self.first_token_at is None:
            self.first_token_at = now

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(self.prompt_tokens, self.reused_tokens, self.completion_tokens)

    def timings(self, now: float) -> Timings:
        """Seconds spent so far in each phase; a phase that was never reached took none."""
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        last = first if self.last_token_at is None else self.last_token_at
        return Timings(
            queue=admitted - self.submitted_at,
            prefill=first - admitted,
            decode=last - first,
            total=now - self.submitted_at,
        )
