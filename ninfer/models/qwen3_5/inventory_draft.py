"""Parameters and packing groups of the DFlash and DFlash2 components (sources of their own, no prefix)."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.artifact.formats import Format
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.config_draft import DraftConfig, SelectorConfig
from ninfer.models.qwen3_5.inventory_types import (
    PackingGroup,
    ParameterSpec,
    RowBlocks,
    SourceRoot,
    SourceSpec,
    UseSpec,
    direct_vector,
    matrix,
    projection,
    vector,
)

_ROOT = SourceRoot.TOP


def draft_inventory(model: ModelConfig, draft: DraftConfig) -> tuple[ParameterSpec, ...]:
    """Parameters of one draft component; hidden size, vocabulary, embedding and head are Text's."""
    name, hidden = draft.kind.component, model.text.hidden_size
    width = len(draft.target_layer_ids) * hidden
    features = matrix(_ROOT, "fc.weight", hidden, width)
    return (
        projection(f"{name}/feature_projection", (hidden, width), features, f"{name}/target_features"),
        direct_vector(f"{name}/context_norm", vector(_ROOT, "hidden_norm.weight", hidden)),
        *(spec for index in range(len(draft.layer_types)) for spec in _layer(draft, hidden, index)),
        direct_vector(f"{name}/final_norm", vector(_ROOT, "norm.weight", hidden)),
        *(_selector(draft.selector, name, model.text.vocab_size, hidden) if draft.selector else ()),
    )


def draft_packing_groups(draft: DraftConfig) -> Iterator[PackingGroup]:
    for index in range(len(draft.layer_types)):
        layer = f"{draft.kind.component}/layers/{index}/"
        yield PackingGroup(tuple(f"{layer}attention/{part}" for part in ("query", "key", "value")))
        yield PackingGroup((f"{layer}mlp/gate", f"{layer}mlp/up"))


def _layer(draft: DraftConfig, hidden: int, index: int) -> Iterator[ParameterSpec]:
    name, source = f"{draft.kind.component}/layers/{index}/", f"layers.{index}."
    for norm, tensor in (
        ("input_norm", "input_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
    ):
        yield direct_vector(f"{name}{norm}", vector(_ROOT, f"{source}{tensor}.weight", hidden))
    yield from _attention(draft, hidden, name, f"{source}self_attn.")
    size = draft.intermediate_size
    for part in ("gate", "up"):
        tensor_spec = matrix(_ROOT, f"{source}mlp.{part}_proj.weight", size, hidden)
        yield projection(f"{name}mlp/{part}", (size, hidden), tensor_spec, f"{name}mlp_input")
    down = matrix(_ROOT, f"{source}mlp.down_proj.weight", hidden, size)
    yield projection(f"{name}mlp/down", (hidden, size), down, f"{name}mlp_product")
    if draft.selector is not None:
        yield from _convolution(draft.selector, hidden, name, source, "attention_conv")
        yield from _convolution(draft.selector, hidden, name, source, "mlp_conv")


def _attention(draft: DraftConfig, hidden: int, layer: str, source: str) -> Iterator[ParameterSpec]:
    name = f"{layer}attention/"
    block_input, context_input = f"{layer}query_projection_input", f"{draft.kind.component}/context_input"
    query, keys = draft.query_width, draft.kv_width
    weight = matrix(_ROOT, f"{source}q_proj.weight", query, hidden)
    yield projection(f"{name}query", (query, hidden), weight, block_input)
    for part in ("key", "value"):
        weight = matrix(_ROOT, f"{source}{part[0]}_proj.weight", keys, hidden)
        yield projection(f"{name}{part}", (keys, hidden), weight, block_input)
        # The same matrix also projects the target's context; it is stored once.
        context = (UseSpec(context_input),)
        yield ParameterSpec(f"{name}context_{part}", (keys, hidden), context, source=weight, shares=f"{name}{part}")
    for part in ("query", "key"):
        norm = vector(_ROOT, f"{source}{part[0]}_norm.weight", draft.head_dim)
        yield direct_vector(f"{name}{part}_norm", norm)
    output = matrix(_ROOT, f"{source}o_proj.weight", hidden, query)
    yield projection(f"{name}output", (hidden, query), output, f"{layer}attention_output")


def _convolution(config: SelectorConfig, hidden: int, layer: str, source: str, part: str) -> Iterator[ParameterSpec]:
    """A static kernel per channel plus a dynamic correction per channel group, before and after."""
    taps = config.conv_kernel_size
    shape = (2, taps, hidden)
    kernel = SourceSpec(_ROOT, f"{source}{part}.base_kernel", shape, RowBlocks(0, 2), 2)
    yield ParameterSpec(f"{layer}{part}/base_kernel", shape, direct=Format.BF16, source=kernel)
    rows = 2 * taps * (hidden // config.conv_group_size)
    weight = matrix(_ROOT, f"{source}{part}.kernel_projection.weight", rows, hidden)
    yield projection(f"{layer}{part}/kernel_projection", (rows, hidden), weight, f"{layer}{part}_input")


def _selector(config: SelectorConfig, component: str, vocab: int, hidden: int) -> Iterator[ParameterSpec]:
    name, rank = f"{component}/candidate_selector/", config.selector_rank
    weight = matrix(_ROOT, "candidate_selector.hidden_projection.weight", rank, hidden)
    yield projection(f"{name}hidden_projection", (rank, hidden), weight, f"{component}/final_hidden")
    for part in ("predecessor_codebook", "successor_codebook"):
        table = matrix(_ROOT, f"candidate_selector.{part}", vocab, rank)
        yield ParameterSpec(f"{name}{part}", (vocab, rank), direct=Format.BF16, source=table)
