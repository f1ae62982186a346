"""Parameters and packing groups of the Vision component."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.artifact.formats import Format
from ninfer.models.qwen3_5.config import ModelConfig, VisionConfig
from ninfer.models.qwen3_5.inventory_types import (
    PackingGroup,
    ParameterSpec,
    RowBlocks,
    SourceRoot,
    SourceSpec,
    direct_vector,
    matrix,
    matrix_rows,
    projection,
    vector,
)

_ROOT = SourceRoot.VISION
_QKV = ("query", "key", "value")


def vision_inventory(model: ModelConfig) -> tuple[ParameterSpec, ...]:
    """Parameters of the vision tower and of the merger into Text's hidden size."""
    vision = model.vision
    assert vision is not None
    return (
        *_stem(vision),
        *(spec for index in range(vision.depth) for spec in _layer(vision, index)),
        *_merger(vision, model.text.hidden_size),
    )


def vision_packing_groups(vision: VisionConfig) -> Iterator[PackingGroup]:
    for index in range(vision.depth):
        name = f"vision/layers/{index}/attention/"
        yield PackingGroup(tuple(f"{name}{part}" for part in _QKV))
        yield PackingGroup(tuple(f"{name}{part}_bias" for part in _QKV))


def _stem(vision: VisionConfig) -> Iterator[ParameterSpec]:
    hidden, width, positions = vision.hidden_size, vision.patch_width, vision.num_position_embeddings
    patch, frames = vision.patch_size, vision.temporal_patch_size
    kernel = SourceSpec(
        _ROOT, "patch_embed.proj.weight", (hidden, 3, frames, patch, patch), RowBlocks(0, hidden), hidden
    )
    yield projection("vision/patch_embedding", (hidden, width), kernel, "vision/patch_input")
    yield direct_vector("vision/patch_embedding_bias", vector(_ROOT, "patch_embed.proj.bias", hidden))
    table = matrix(_ROOT, "pos_embed.weight", positions, hidden)
    yield ParameterSpec("vision/position_embedding", (positions, hidden), direct=Format.BF16, source=table)


def _layer(vision: VisionConfig, index: int) -> Iterator[ParameterSpec]:
    name, source = f"vision/layers/{index}/", f"blocks.{index}."
    hidden, size = vision.hidden_size, vision.intermediate_size
    for norm in ("norm1", "norm2"):
        for part in ("weight", "bias"):
            yield direct_vector(f"{name}{norm}_{part}", vector(_ROOT, f"{source}{norm}.{part}", hidden))
    for order, part in enumerate(_QKV):
        yield from _fused_part(name, f"{source}attn.qkv.", hidden, order, part)
    yield from _affine(f"{name}attention/output", f"{source}attn.proj", hidden, hidden, f"{name}attention_output")
    yield from _affine(f"{name}mlp/fc1", f"{source}mlp.linear_fc1", size, hidden, f"{name}mlp_input")
    yield from _affine(f"{name}mlp/fc2", f"{source}mlp.linear_fc2", hidden, size, f"{name}mlp_activation")


def _fused_part(layer: str, source: str, hidden: int, order: int, part: str) -> Iterator[ParameterSpec]:
    name, rows = f"{layer}attention/{part}", RowBlocks(order * hidden, hidden)
    weight = matrix_rows(_ROOT, f"{source}weight", (3 * hidden, hidden), rows)
    yield projection(name, (hidden, hidden), weight, f"{layer}attention_input")
    bias = SourceSpec(_ROOT, f"{source}bias", (3 * hidden,), rows, 3 * hidden)
    yield direct_vector(f"{name}_bias", bias)


def _affine(name: str, source: str, rows: int, columns: int, use: str) -> Iterator[ParameterSpec]:
    weight = matrix(_ROOT, f"{source}.weight", rows, columns)
    yield projection(name, (rows, columns), weight, use)
    yield direct_vector(f"{name}_bias", vector(_ROOT, f"{source}.bias", rows))


def _merger(vision: VisionConfig, text_hidden: int) -> Iterator[ParameterSpec]:
    name, width = "vision/merger/", vision.merged_width
    for part in ("weight", "bias"):
        yield direct_vector(f"{name}norm_{part}", vector(_ROOT, f"merger.norm.{part}", vision.hidden_size))
    yield from _affine(f"{name}fc1", "merger.linear_fc1", width, width, f"{name}input")
    yield from _affine(f"{name}fc2", "merger.linear_fc2", text_hidden, width, f"{name}activation")
