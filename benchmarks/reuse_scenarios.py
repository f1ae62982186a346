"""Prompts of exact lengths that repeat, grow, branch and are shared: how much of each is computed again.

Each scenario asks one Engine twice, with the cache and without it, and knows the most that may be recomputed. They are
run by `prefix_reuse.py` for measuring and by the tests on a tiny model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ninfer.engine import Engine
from ninfer.types import (
    CacheUse,
    EngineOptions,
    GenerationRequest,
    GenerationResult,
    GenerationStart,
    Prompt,
    Sampling,
    StopConditions,
    TokenPrompt,
)

CONTEXT, LANES = 4096, 4
NEW_TOKENS = 8
ALTERNATIONS = 10


def options(threads: int | None = None) -> EngineOptions:
    """The defaults of reuse, with pages for every lane's whole context."""
    return EngineOptions(threads=threads, max_context=CONTEXT, max_concurrency=LANES, kv_capacity=LANES * CONTEXT // 64)


# --- asking ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visit:
    """One request as it was served. `ttft` is seconds from submission to the first token."""

    prompt: int
    reused: int
    source: str
    ttft: float
    answer: tuple[int, ...]

    @property
    def recomputed(self) -> int:
        """Prompt tokens that were computed."""
        return self.prompt - self.reused


class Client:
    """Asks one Engine greedily, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def ask(
        self,
        prompt: Prompt | Sequence[int],
        session: str | None = None,
        cache: CacheUse = CacheUse.READ_WRITE,
        new_tokens: int = NEW_TOKENS,
    ) -> Visit:
        return self.answer(prompt, session, cache, new_tokens)[0]

    def answer(
        self, prompt: Prompt | Sequence[int], session: str | None, cache: CacheUse, new_tokens: int
    ) -> tuple[Visit, GenerationResult]:
        """Ready token ids are never stopped early, so that lengths are exact."""
        exact = isinstance(prompt, Sequence)
        asked = GenerationRequest(
            TokenPrompt(tuple(prompt)) if isinstance(prompt, Sequence) else prompt,
            new_tokens,
            Sampling.greedy(),
            StopConditions(ignore_eos=exact),
            session_key=session,
            cache=cache,
        )
        with self.engine.generate(asked) as handle:
            result = handle.result()
            start = next(event for event in handle.published if isinstance(event, GenerationStart))
        assert start.reuse is not None, "an admitted request says what it reused"
        source = start.reuse.reason if start.reuse.kind is None else start.reuse.kind
        ttft = result.timings.queue + result.timings.prefill
        visit = Visit(start.prompt_tokens, start.reused_tokens, source.value, ttft, result.token_ids)
        return visit, result


# --- scenarios ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario: tokens that the last request computed (the most of any, if there are several), and its limit."""

    name: str
    recomputed: int
    limit: int
    cold: Visit
    warm: Visit

    @property
    def passed(self) -> bool:
        """Within the limit, with the answer unchanged."""
        return self.recomputed <= self.limit and self.cold.answer == self.warm.answer


Tokens = Callable[[int], list[int]]


def exact_repeat(client: Client, tokens: Tokens) -> Outcome:
    prompt = tokens(1024)
    client.ask(prompt)
    return _outcome("exact repeat of 1024 tokens", client, prompt, 64)


def next_turn(client: Client, tokens: Tokens) -> Outcome:
    prompt = tokens(1024)
    answer = client.ask(prompt, "turns").answer
    return _outcome("next turn, 64 new tokens", client, [*prompt, *answer, *tokens(64)], 65, "turns")


def branch(client: Client, tokens: Tokens) -> Outcome:
    prompt = tokens(1024)
    client.ask(prompt, "branch")
    return _outcome("branch equal in 960 of 1024", client, [*prompt[:960], *tokens(64)], 192, "branch")


def second_user(client: Client, tokens: Tokens) -> Outcome:
    shared = tokens(1500)
    client.ask([*shared, *tokens(50)], "first user")
    return _outcome("second user, 1500 shared + 50", client, [*shared, *tokens(50)], 256, "second user")


def alternating(client: Client, tokens: Tokens) -> Outcome:
    """Two branches of one session take turns, and each grows by its answer and 64 tokens; the limit is the first turn.

    The branches start with their second request: the first is their common prompt with 64 tokens of their own.
    """
    prompt = tokens(1024)
    branches = [[*prompt, *tokens(64)], [*prompt, *tokens(64)]]
    visits: list[list[Visit]] = []
    for _ in range(ALTERNATIONS + 1):
        visits.append([client.ask(history, "alternating") for history in branches])
        for history, visit in zip(branches, visits[-1], strict=True):
            history.extend([*visit.answer, *tokens(64)])
    returns = [max(visit.recomputed for visit in pair) for pair in visits[1:]]
    last = branches[1][: visits[-1][1].prompt]
    cold = client.ask(last, cache=CacheUse.DISABLED)
    return Outcome("two branches alternating 10 times", max(returns), returns[0], cold, visits[-1][1])


SCENARIOS = (exact_repeat, next_turn, branch, second_user, alternating)


def _outcome(name: str, client: Client, prompt: Sequence[int], limit: int, session: str | None = None) -> Outcome:
    warm = client.ask(prompt, session)
    cold = client.ask(prompt, session, CacheUse.DISABLED)
    return Outcome(name, warm.recomputed, limit, cold, warm)


def run_scenarios(client: Client, vocabulary: Sequence[int]) -> Iterator[Outcome]:
    """All of them on one Engine; their prompts have nothing in common."""
    for number, scenario in enumerate(SCENARIOS):
        rng = random.Random(number)
        yield scenario(client, lambda count, rng=rng: rng.choices(vocabulary, k=count))
