"""What is measured, at which bits, and how many bytes a decode step cannot do without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DECODE_PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Work:
    """Reading `prompt` tokens (`new` is 0), or writing `new` tokens for `batch` requests after `depth` tokens each.

    One process run gives `repeats` figures: more than one where getting there costs more than the measurement itself.
    """

    name: str
    prompt: int = 0
    new: int = 0
    batch: int = 1
    depth: int = 0
    repeats: int = 1

    @property
    def is_prefill(self) -> bool:
        return self.new == 0

    @property
    def is_parallel(self) -> bool:
        """Measured by the programs' means for several requests at once, also where it is only one."""
        return self.name.startswith("parallel")

    def runs(self, pairs: int) -> int:
        """Process runs of each program that give `pairs` pairs of figures."""
        return -(-pairs // self.repeats)


WORKS: Mapping[str, tuple[Work, ...]] = {
    "prefill512": (Work("prefill512", prompt=512),),
    "prefill2048": (Work("prefill2048", prompt=2048),),
    "decode0": (Work("decode0", new=128),),
    "decode4096": (Work("decode4096", new=128, depth=4096, repeats=3),),
    "parallel": tuple(Work(f"parallel{batch}", new=32, batch=batch) for batch in (1, 2, 4, 8)),
}


SINGLE_WORKS: Mapping[str, tuple[Work, ...]] = {work.name: (work,) for group in WORKS.values() for work in group}
"""Works by their own names: those of a group apart."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Formats with the same nominal bits: a ninfer recipe and a GGUF file type, `Q4_0` with the head in `Q6_K`."""

    name: str
    recipe: str
    gguf_type: str


BITS: Mapping[str, Bits] = {
    "q4": Bits("q4", "q4-cpu", "Q4_0"),
    "q8": Bits("q8", "q8-cpu", "Q8_0"),
    "bf16": Bits("bf16", "bf16", "BF16"),
}


@dataclass(frozen=True, slots=True)
class Series:
    """What is measured at some bits."""

    bits: Bits
    works: Sequence[Work]


def read_series(formats: str, works: str) -> list[Series]:
    """`q4,bf16:decode0+prefill512` and the works of formats that name none. Raises ValueError for unknown names."""
    series = []
    for entry in formats.split(","):
        name, _, own = entry.partition(":")
        if name not in BITS:
            raise ValueError(f"unknown format: {name}; known: {', '.join(BITS)}")
        series.append(Series(BITS[name], _works(own.split("+") if own else works.split(","))))
    return series


def _works(names: Sequence[str]) -> list[Work]:
    known = WORKS | SINGLE_WORKS
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown work: {', '.join(unknown)}; known: {', '.join(known)}")
    return [work for name in names for work in known[name]]


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of one sequence: keys and values of one token (two bytes each), and its recurrent state in fp32."""

    per_token: int
    recurrent: int


def state_bytes(config: Mapping[str, Any]) -> StateBytes:
    """What the sequences of a model with this text config carry from token to token."""
    attention = config["layer_types"].count("full_attention")
    gdn = len(config["layer_types"]) - attention
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    convolution = (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    return StateBytes(
        per_token=attention * 2 * config["num_key_value_heads"] * config["head_dim"] * 2,
        recurrent=gdn * 4 * (values * config["linear_key_head_dim"] + convolution),
    )


def step_bytes(work: Work, weights: int, state: StateBytes) -> float:
    """Bytes that a mean decode step moves at least: weights and KV once, recurrent states read and written."""
    context = max(work.depth, DECODE_PROMPT_TOKENS) + work.new / 2
    return weights + work.batch * (context * state.per_token + 2 * state.recurrent)


def bytes_per_second(work: Work, tokens_per_second: float, weights: int, state: StateBytes) -> float | None:
    """Those bytes times the decode steps per second; None for prefill, which memory does not bound."""
    return None if work.is_prefill else step_bytes(work, weights, state) * tokens_per_second / work.batch
