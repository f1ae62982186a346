"""From a trace to requests for one model: prompts made, and what does not fit its context counted out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer.bench.replay import ReplayItem
from ninfer.bench.synthesis import synthesise
from ninfer.bench.trace import Conversation, TokenCount, Trace, TraceRequest
from ninfer.types import ChatPrompt, GenerationRequest, Prompt, Sampling, StopConditions, TokenPrompt

CountTokens = Callable[[Prompt], int]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that fit, by arrival, and how many were skipped because they do not."""

    items: tuple[ReplayItem, ...]
    skipped: int


def build_workload(
    trace: Trace, max_context: int, pool: Sequence[int], count_tokens: CountTokens, thinking: bool | None = None
) -> Workload:
    """Greedy requests for a model of `max_context`; token counts are filled from `pool`.

    `count_tokens` renders a conversation to know its length.

    Requests given by token counts ignore the end-of-sequence token: their answers have exactly the traced length.
    """
    items = []
    for traced in trace.requests:
        prompt = _prompt(traced, max_context, pool, thinking, count_tokens)
        if prompt is not None:
            items.append(ReplayItem(traced.index, traced.arrival, _request(traced, prompt)))
    return Workload(tuple(items), len(trace.requests) - len(items))


def _prompt(
    traced: TraceRequest, max_context: int, pool: Sequence[int], thinking: bool | None, count_tokens: CountTokens
) -> Prompt | None:
    room = max_context - traced.output_tokens
    match traced.prompt:
        case TokenCount() as count:
            fits = count.tokens <= room
            return TokenPrompt(synthesise(count, str(traced.index), pool)) if fits else None
        case Conversation(messages=messages, tools=tools):
            prompt = ChatPrompt(messages, tools, thinking)
            return prompt if count_tokens(prompt) <= room else None


def _request(traced: TraceRequest, prompt: Prompt) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        max_new_tokens=traced.output_tokens,
        sampling=Sampling.greedy(),
        stops=StopConditions(ignore_eos=isinstance(traced.prompt, TokenCount)),
        session_key=traced.session,
    )
