"""A fake server with fixed speeds and lanes, on the loop's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import (
    Channel,
    Delta,
    Event,
    Finish,
    FinishReason,
    GenerationRequest,
    GenerationStart,
    Timings,
    TokenPrompt,
    Usage,
)


class FakeServer:
    """`prefill` and `decode` seconds per token, `lanes` requests at a time, the rest wait.

    `refuse` are the positions (0, 1, …) of calls that are refused; `fail` of those that end in an error;
    `burst` tokens come with every delta.
    """

    def __init__(
        self,
        prefill: float = 0.01,
        decode: float = 0.1,
        lanes: int = 8,
        refuse: frozenset[int] = frozenset(),
        fail: frozenset[int] = frozenset(),
        burst: int = 1,
    ) -> None:
        self._prefill, self._decode, self._burst = prefill, decode, burst
        self._lanes = asyncio.Semaphore(lanes)
        self._refuse, self._fail = refuse, fail
        self.started: list[tuple[float, GenerationRequest]] = []
        self.most_at_once = 0
        self._at_once = 0

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Event]:
        call = len(self.started)
        self.started.append((asyncio.get_running_loop().time(), request))
        if call in self._refuse:
            raise RequestError(RequestErrorKind.OVERLOADED, "queue full")
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        async with self._lanes:
            async for event in self._answer(request, call):
                yield event
        self._at_once -= 1

    async def _answer(self, request: GenerationRequest, call: int) -> AsyncIterator[Event]:
        assert isinstance(request.prompt, TokenPrompt)
        assert request.max_new_tokens is not None
        prompt, wanted = len(request.prompt.token_ids), request.max_new_tokens
        await asyncio.sleep(prompt * self._prefill)
        yield GenerationStart(prompt, prompt // 2)
        for position in range(0, wanted, self._burst):
            if position:
                await asyncio.sleep(self._decode * self._burst)
            yield Delta(Channel.CONTENT, "x", (1,) * min(self._burst, wanted - position))
        usage = Usage(prompt, prompt // 2, wanted)
        failed = call in self._fail
        reason = FinishReason.ERROR if failed else FinishReason.LENGTH
        yield Finish(reason, usage, Timings(0, 0, 0, 0), "a unit failed" if failed else None)
