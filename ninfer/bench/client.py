"""A real Engine as the replay's event stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from ninfer.bench.replay import Stream
from ninfer.bench.synthesis import POOL_TEXT
from ninfer.types import Event, GenerationRequest, Prompt, TextPrompt

if TYPE_CHECKING:
    from ninfer.engine import Engine

KV_AXIS = "kv_pages"


def event_stream(engine: Engine, after_event: Callable[[], None] = lambda: None) -> Stream:
    """Every call submits one request and yields its events; leaving early cancels it."""

    async def stream(request: GenerationRequest) -> AsyncIterator[Event]:
        async with engine.generate(request) as handle:
            async for event in handle:
                after_event()
                yield event

    return stream


def count_tokens(engine: Engine, prompt: Prompt) -> int:
    """How many tokens a prompt has for this model."""
    return len(engine.render(prompt).token_ids)


def token_pool(engine: Engine) -> tuple[int, ...]:
    """Plain tokens of this model's vocabulary, to make prompts of."""
    return tuple(sorted(set(engine.render(TextPrompt(POOL_TEXT)).token_ids)))


def kv_occupancy(engine: Engine) -> float:
    """Fraction of the KV pages that hold committed tokens, 0..1, at the engine's last boundary."""
    occupancy = engine.stats().occupancy
    axes = () if occupancy is None else occupancy.axes
    pages = next((axis for axis in axes if axis.name == KV_AXIS), None)
    return 0.0 if pages is None else pages.allocated / pages.capacity
