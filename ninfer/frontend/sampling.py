"""How the next token is chosen when the caller leaves it open, and whether what the caller says makes sense.

The order of precedence, value by value:

1. what the caller sets;
2. if the temperature so far is 0 (greedy): neutral values, so that greedy means the model's own likeliest token;
3. what this checkpoint's `generation_config.json` says, where that differs from the family's thinking preset. The
   official files repeat that preset whatever the mode, so a repeated value says nothing about this checkpoint;
   any other value is its own and holds in both modes;
4. the family's preset for the mode, which is thinking exactly when the prompt opened the reasoning channel.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from ninfer.errors import ConfigError
from ninfer.frontend.messages import invalid
from ninfer.frontend.resources import GENERATION_CONFIG
from ninfer.types import ResolvedSampling, Sampling

SEED_LIMIT = 1 << 64


@dataclass(frozen=True, slots=True)
class SamplingValues:
    """One value per sampling field except the seed."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


NEUTRAL = SamplingValues()
THINKING = SamplingValues(temperature=1.0, top_p=0.95, top_k=20)
NON_THINKING = SamplingValues(temperature=0.7, top_p=0.80, top_k=20, presence_penalty=1.5)
MOE_THINKING = SamplingValues(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5)

_FIELDS = tuple(field.name for field in fields(SamplingValues))


@dataclass(frozen=True, slots=True)
class _Domain:
    """What values a field may take, in words and as a test."""

    words: str
    holds: Callable[[float], bool]
    integral: bool = False


_PENALTY = _Domain("between -2 and 2", lambda value: -2 <= value <= 2)
_DOMAINS = {
    "temperature": _Domain("0 or greater, and finite", lambda value: value >= 0),
    "top_p": _Domain("greater than 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": _Domain("a whole number, 0 (off) or greater", lambda value: value >= 0, integral=True),
    "min_p": _Domain("between 0 and 1", lambda value: 0 <= value <= 1),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": _Domain("greater than 0, and finite", lambda value: value > 0),
    "seed": _Domain("a whole number between 0 and 2^64-1", lambda value: 0 <= value < SEED_LIMIT, integral=True),
}


class SamplingRules:
    """The defaults of one model. Raises ConfigError for a value in generation_config that no sampler can honour."""

    def __init__(self, generation: Mapping[str, object], is_moe: bool) -> None:
        self._own = _checkpoint_values(generation)
        self._thinking = MOE_THINKING if is_moe else THINKING

    def resolve(self, sampling: Sampling, thinking: bool, seed_source: Callable[[], int]) -> ResolvedSampling:
        """Every value settled. Raises RequestError (INVALID) naming the field that is out of its domain."""
        given = {name: value for name in (*_FIELDS, "seed") if (value := getattr(sampling, name)) is not None}
        for name, value in given.items():
            if (problem := _problem(name, value)) is not None:
                raise invalid(f"sampling.{name}: {value!r} is not valid; it must be {problem}")
        seed = given.pop("seed", None)
        preset = self._thinking if thinking else NON_THINKING
        defaults = {name: getattr(preset, name) for name in _FIELDS} | self._own
        if given.get("temperature", defaults["temperature"]) == 0:
            defaults = {name: getattr(NEUTRAL, name) for name in _FIELDS}
        values = defaults | given
        return ResolvedSampling(**values, seed=seed_source() % SEED_LIMIT if seed is None else seed)


def draw_seed() -> int:
    """A fresh 64-bit seed."""
    return secrets.randbits(64)


def _checkpoint_values(generation: Mapping[str, object]) -> dict[str, float]:
    if generation.get("do_sample") is False:
        return {"temperature": 0.0}
    values: dict[str, float] = {}
    for name in _FIELDS:
        value = generation.get(name)
        if value is None:
            continue
        if (problem := _problem(name, value)) is not None or not isinstance(value, (int, float)):
            raise ConfigError(f"{GENERATION_CONFIG}: {name}: {value!r} is not valid; it must be {problem}")
        if value != getattr(THINKING, name):
            values[name] = value
    return values


def _problem(name: str, value: object) -> str | None:
    """What the field asks for, if `value` is not that."""
    domain = _DOMAINS[name]
    numeric = isinstance(value, int) if domain.integral else isinstance(value, (int, float))
    if isinstance(value, bool) or not numeric:
        return domain.words
    assert isinstance(value, (int, float))
    return None if math.isfinite(value) and domain.holds(value) else domain.words
