"""DFlash and DFlash2 drafters from directories of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import convert
from tests.checkpoints import Checkpoint
from tests.convert.expected import decoded_as

HIDDEN, VOCAB, SIZE, HEADS, KV_HEADS, DIM, TAPS, GROUP, RANK = 128, 512, 192, 4, 2, 64, 2, 16, 32


def draft_checkpoint(path: Path, *, second: bool) -> dict[str, torch.Tensor]:
    """Write a two-layer drafter with three target features; returns its tensors."""
    path.mkdir()
    flash: dict[str, Any] = {"target_layer_ids": [0, 1, 3], "mask_token_id": 400, "block_size": 8}
    if second:
        flash |= {"conv_kernel_size": TAPS, "conv_group_size": GROUP, "selector_rank": RANK, "selector_top_k": 8}
    config = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "intermediate_size": SIZE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "num_hidden_layers": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e7,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 1024,
        "dflash_config": flash,
    }
    (path / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for layer in ("layers.0.", "layers.1."):
        shapes |= {f"{layer}input_layernorm.weight": (HIDDEN,), f"{layer}post_attention_layernorm.weight": (HIDDEN,)}
        shapes |= {
            f"{layer}self_attn.q_proj.weight": (HEADS * DIM, HIDDEN),
            f"{layer}self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        }
        shapes |= {f"{layer}self_attn.{part}_proj.weight": (KV_HEADS * DIM, HIDDEN) for part in "kv"}
        shapes |= {f"{layer}self_attn.{part}_norm.weight": (DIM,) for part in "qk"}
        shapes |= {f"{layer}mlp.{part}_proj.weight": (SIZE, HIDDEN) for part in ("gate", "up")}
        shapes[f"{layer}mlp.down_proj.weight"] = (HIDDEN, SIZE)
        for conv in ("attention_conv", "mlp_conv") if second else ():
            shapes[f"{layer}{conv}.base_kernel"] = (2, TAPS, HIDDEN)
            shapes[f"{layer}{conv}.kernel_projection.weight"] = (2 * TAPS * (HIDDEN // GROUP), HIDDEN)
    if second:
        shapes["candidate_selector.hidden_projection.weight"] = (RANK, HIDDEN)
        shapes["candidate_selector.predecessor_codebook"] = (VOCAB, RANK)
        shapes["candidate_selector.successor_codebook"] = (VOCAB, RANK)
    generator = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    save_file(tensors, path / "model.safetensors")
    return tensors


def parameter_of(component: str, tensor: str) -> str:
    """Persistent name of a drafter's tensor."""
    if not tensor.startswith("layers."):
        stem = {"fc": "feature_projection", "hidden_norm": "context_norm", "norm": "final_norm"}
        return (
            f"{component}/{stem.get(tensor.removesuffix('.weight'), tensor.removesuffix('.weight').replace('.', '/'))}"
        )
    name = tensor.removesuffix(".weight").replace(".", "/")
    for old, new in (
        ("self_attn/q_proj", "attention/query"),
        ("self_attn/k_proj", "attention/key"),
        ("self_attn/v_proj", "attention/value"),
        ("self_attn/o_proj", "attention/output"),
        ("self_attn/q_norm", "attention/query_norm"),
        ("self_attn/k_norm", "attention/key_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("input_layernorm", "input_norm"),
        ("_proj", ""),
    ):
        name = name.replace(old, new) if "kernel_projection" not in name else name
    return f"{component}/{name}"


@pytest.mark.parametrize("component", ["dflash", "dflash2"])
@pytest.mark.parametrize("recipe", ["bf16", "groupwise"])
def test_drafters(plain: Checkpoint, tmp_path: Path, component: str, recipe: str) -> None:
    tensors = draft_checkpoint(tmp_path / component, second=component == "dflash2")
    report = convert(
        plain.path, tmp_path / "m.ninfer", recipe=recipe, sources={component: tmp_path / component}, proposal=64
    )
    assert report.components == ("text", component)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        directory = reader.directory
        owned = {name for name in directory.bindings if name.startswith(f"{component}/")}
        context = {f"{component}/layers/{i}/attention/context_{part}" for i in (0, 1) for part in ("key", "value")}
        assert {parameter_of(component, name) for name in tensors} == owned - context
        for tensor, value in tensors.items():
            name = parameter_of(component, tensor)
            fmt = directory.tensor(directory.parts(directory.binding(name))[0].object).format
            found = reader.decode_parameter(name, tuple(value.shape))
            np.testing.assert_array_equal(found, decoded_as(value.float().numpy(), fmt), err_msg=name)
        for name in context:
            assert directory.binding(name) == directory.binding(name.replace("context_", ""))
        uses = {(use.parameter, use.input) for use in directory.uses}
        objects = {stored.id for stored in directory.objects}
    assert f"{component}/layers/0/attention/query+key+value" in objects
    assert f"{component}/layers/0/mlp/gate+up" in objects
    assert {("text/output_head", "text/final_hidden"), ("text/output_head", f"{component}/final_hidden")} <= uses
    assert ("proposal/head", f"{component}/final_hidden") in uses
