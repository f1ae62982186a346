"""Whole models of official geometry with random weights made on the device: decode rounds and prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from ops.linear import FORMATS, random_bytes

from gpu.budget import Budget
from gpu.facts import Facts
from gpu.timing import best
from ninfer.artifact.formats import Format
from ninfer.kernels import jit
from ninfer.kernels.arena import Arena
from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec
from ninfer.kernels.placement import Cuda
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import ZERO, StateSlots
from ninfer.kernels.weights import LinearWeight, TableWeight, WeightView, prepare_linear, prepare_table
from ninfer.models.qwen3_5.batch import Batch
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import component_inventory
from ninfer.models.qwen3_5.parameters import build_text_model
from ninfer.models.qwen3_5.state import allocate_state
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.program.rounds import Recorder, Repeated, RoundInputs

_SCALE = 0.002  # of codes: keeps activations of random weights near one


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens per second of one whole model doing one thing, and the least that it could take.

    Attributes:
        floor: seconds: bytes that must be read over the copy bandwidth, or operations over the bf16 peak.
    """

    model: str
    work: str
    graph: bool
    tokens_per_second: float
    seconds: float
    floor: float


@dataclass(slots=True)
class RandomBinder:
    """Gives `build_text_model` random weights by name, made once per parameter."""

    config: ModelConfig
    fmt: Format
    placement: Cuda
    _shapes: Mapping[str, tuple[int, ...]] = field(init=False)
    _views: dict[str, WeightView] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        specs = component_inventory(self.config, "text")
        self._shapes = {spec.name: spec.shape for spec in specs}

    def linear(self, *names: str) -> LinearWeight:
        return prepare_linear([self._view(name, self.fmt) for name in names])

    def table(self, name: str) -> TableWeight:
        return prepare_table(self._view(name, Format.Q6))

    def dense(self, name: str) -> torch.Tensor:
        return self.placement.upload(torch.randn(self._shapes[name], device="cpu") * 0.1)

    def _view(self, name: str, fmt: Format) -> WeightView:
        if name not in self._views:
            shape = self._shapes[name]
            rows, columns = math.prod(shape[:-1]), shape[-1]
            data = random_bytes(fmt, (rows, columns), _SCALE)
            self._views[name] = WeightView(fmt, (rows, columns), 0, rows, data)
        return self._views[name]


def time_models(placement: Cuda, facts: Facts, budget: Budget, tiny: bool) -> Iterator[Run]:
    """Decoding with and without graphs, and reading prompts."""
    for name, text in (_TINY if tiny else _OFFICIAL).items():
        if budget.allows(f"model {name}"):
            with torch.device(placement.place):
                yield from _time_model(name, text, placement, facts, budget, tiny)


def _time_model(
    name: str, text: dict[str, Any], placement: Cuda, facts: Facts, budget: Budget, tiny: bool
) -> Iterator[Run]:
    config = ModelConfig.from_artifact({"text": text}, "benchmark")
    model = build_text_model(config.text, RandomBinder(config, FORMATS["q4"], placement), lambda done, total: None)
    bench = _Bench(name, config, model, placement, facts)
    for rows in (1, 3) if tiny else (1, 2, 4, 8):
        for graph in (True, False):
            if budget.allows(f"{name} decode of {rows}, graph {graph}"):
                yield bench.decode(rows, graph)
    for tokens in (70,) if tiny else (512, 2048, 4096, 8192):
        if budget.allows(f"{name} prompt of {tokens}"):
            yield bench.prefill(tokens)


@dataclass(frozen=True, slots=True)
class _Bench:
    name: str
    config: ModelConfig
    model: TextModel
    placement: Cuda
    facts: Facts

    def decode(self, rows: int, graph: bool) -> Run:
        """Rounds of `rows` requests at the beginning of their contexts, from one image to another."""
        state = allocate_state(self.config.text, KvCodec.BF16, rows, 2 * rows, self.placement)
        inputs, arena = RoundInputs(self.placement, rows, 1), Arena(self.placement)
        inputs.states[0] = range(rows, 2 * rows)
        inputs.push()
        hidden = self.placement.empty(rows, self.model.hidden_size)
        logits = self.placement.empty(rows, self.model.vocab_size)

        def one_round() -> None:
            with arena.scope():
                self.model.forward(inputs.batch, state, arena, hidden)
                self.model.logits(hidden, arena, logits)

        recorder: Recorder = jit.record if graph else Repeated.record
        run = recorder(one_round).run
        seconds = best(run)
        return self._run(f"decode, {rows} at once", graph, rows, seconds, self._decode_bytes(rows), 0)

    def prefill(self, tokens: int) -> Run:
        """One prompt from its beginning, in one chunk, to the logits of its last token."""
        pages = -(-tokens // PAGE_TOKENS)
        state = allocate_state(self.config.text, KvCodec.BF16, pages, 1, self.placement)
        batch, wanted = _prompt(tokens, pages), torch.tensor([tokens - 1])
        arena, hidden = Arena(self.placement), self.placement.empty(1, self.model.hidden_size)
        logits = self.placement.empty(1, self.model.vocab_size)

        def read() -> None:
            with arena.scope():
                self.model.forward_rows(batch, state, arena, wanted, hidden)
                self.model.logits(hidden, arena, logits)

        read()
        seconds = best(read)
        return self._run(f"prompt of {tokens}", False, tokens, seconds, 0, 2 * tokens * self._active_weights())

    def _run(self, work: str, graph: bool, tokens: int, seconds: float, nbytes: int, flops: int) -> Run:
        return Run(self.name, work, graph, tokens / seconds, seconds, self.facts.floor(nbytes, flops))

    def _matrices(self) -> Iterator[tuple[LinearWeight, float]]:
        """Every linear, and the share of it that one token uses."""
        for block in self.model.blocks:
            for part in (block.mixer.weights, block.ffn):
                yield from _linears(part)
        yield self.model.head, 1.0

    def _active_weights(self) -> int:
        """Multiplications per token of a prompt; the head's are for one token only."""
        used = sum(w.rows * w.columns * share for w, share in self._matrices())
        return round(used - self.model.head.rows * self.model.head.columns)

    def _decode_bytes(self, rows: int) -> int:
        """Of weights; an expert that several tokens choose is read once."""
        return round(sum(w.nbytes * (1 - (1 - share) ** rows) for w, share in self._matrices()))


def _linears(part: Any) -> Iterator[tuple[LinearWeight, float]]:
    """Of a block's weights, with the share of tokens that use each."""
    if hasattr(part, "weights"):
        experts, chosen = part.weights.experts, part.config.experts_per_token
        for weight in (*experts.gate_up, *experts.down):
            yield weight, chosen / experts.count
        part = part.weights
    for name in part.__slots__:
        if isinstance(value := getattr(part, name), LinearWeight):
            yield value, 1.0


def _prompt(tokens: int, pages: int) -> Batch:
    return Batch(
        token_ids=torch.arange(tokens) % 1000,
        positions=torch.arange(tokens, dtype=torch.int32).expand(3, -1).contiguous(),
        segments=Segments((tokens,), (0,)),
        tables=torch.arange(pages, dtype=torch.int32).view(1, -1),
        slots=torch.arange(tokens),
        states=StateSlots((ZERO,), (0,)),
    )


def _text(layers: int, **sizes: Any) -> dict[str, Any]:
    """The text config of a family member of so many layers."""
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    common = {
        "vocab_size": 248320,
        "num_hidden_layers": layers,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "layer_types": [kinds[index % 4] for index in range(layers)],
        "head_dim": 256,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    return common | sizes


_DENSE = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
_MOE = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
_OFFICIAL = {
    "27b": _text(
        64,
        **_DENSE,
        hidden_size=5120,
        intermediate_size=17408,
        num_attention_heads=24,
        num_key_value_heads=4,
        linear_num_value_heads=48,
    ),
    "35b-a3b": _text(
        40,
        **_MOE,
        hidden_size=2048,
        num_attention_heads=16,
        num_key_value_heads=2,
        linear_num_value_heads=32,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
}
_SMALL = {
    "vocab_size": 512,
    "head_dim": 64,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [6, 5, 5]},
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 4,
}
_TINY = {
    "tiny dense": _text(4, **_DENSE, **_SMALL, intermediate_size=256),
    "tiny moe": _text(
        4,
        **_MOE,
        **_SMALL,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    ),
}
