"""Oracle of sample: the contract's seven steps on Python floats and dictionaries, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Parameters:
    """One row's parameters as plain values; `allowed` is None when there is no mask."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prompt: Sequence[int] = ()
    output: Mapping[int, int] = field(default_factory=dict)
    allowed: Sequence[int] | None = None


def distribution(logits: Sequence[float], p: Parameters) -> list[tuple[int, float]]:
    """(token, probability) pairs in the order in which they are drawn."""
    allowed = range(len(logits)) if p.allowed is None else set(p.allowed)
    scores = {i: float(z) for i, z in enumerate(logits) if i in allowed}
    for token in set(p.prompt) | set(p.output):
        if token in scores:
            z = scores[token]
            scores[token] = z / p.repetition_penalty if z > 0 else z * p.repetition_penalty
    for token, count in p.output.items():
        if token in scores:
            scores[token] -= p.presence_penalty + p.frequency_penalty * count
    ranked = sorted((i for i in scores if scores[i] > -math.inf), key=lambda i: (-scores[i], i))
    if p.temperature <= 0:
        return [(ranked[0], 1.0)]
    if p.top_k:
        ranked = ranked[: p.top_k]
    weight = {i: math.exp((scores[i] - scores[ranked[0]]) / p.temperature) for i in ranked}
    ranked.sort(key=lambda i: (-weight[i], i))
    if p.top_p < 1:
        ranked = _nucleus(ranked, weight, p.top_p * math.fsum(weight.values()))
    ranked = [i for i in ranked if weight[i] >= p.min_p]
    mass = math.fsum(weight[i] for i in ranked)
    return [(i, weight[i] / mass) for i in ranked]


def draw(pairs: Sequence[tuple[int, float]], u: float) -> int:
    """The first token whose running sum exceeds u."""
    running = 0.0
    for token, probability in pairs:
        running += probability
        if running > u:
            return token
    return pairs[-1][0]


def _nucleus(ranked: Sequence[int], weight: Mapping[int, float], needed: float) -> list[int]:
    kept, running = [], 0.0
    for token in ranked:
        kept.append(token)
        running += weight[token]
        if running >= needed:
            break
    return kept
