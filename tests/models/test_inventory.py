"""The inventory against independent facts: transformers' own parameters, and exact coverage of sources."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict
from typing import Any

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

from ninfer.artifact.formats import Format
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import (
    ParameterSpec,
    RowBlocks,
    SourceRoot,
    component_inventory,
    inventory,
    packing_groups,
)
from tests.models.configs import DENSE, DFLASH, DFLASH2, MOE, VISION

PREFIX = {SourceRoot.TOP: "", SourceRoot.TEXT: "model.", SourceRoot.VISION: "model.visual."}


def full_model(text: dict[str, Any], experts: int = 4) -> ModelConfig:
    moe = "num_experts" in text
    text = {**text, "num_experts": experts, "num_experts_per_tok": 2} if moe else text
    configs = {
        "text": text,
        "vision": {**VISION, "model_type": "qwen3_5_moe_vision" if moe else "qwen3_5_vision"},
        "mtp": {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]},
        "dflash": DFLASH,
        "dflash2": DFLASH2,
    }
    return ModelConfig.from_artifact(configs, "components")


def sources(specs: tuple[ParameterSpec, ...]) -> dict[str, tuple[int, ...]]:
    return {
        PREFIX[spec.source.root] + spec.source.tensor: spec.source.shape for spec in specs if spec.source is not None
    }


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("text", [DENSE, MOE], ids=["dense", "moe"])
def test_text_covers_every_parameter_of_the_reference_model(text: dict[str, Any], tied: bool) -> None:
    members = {**text, "num_experts": 4, "num_experts_per_tok": 2} if text is MOE else text
    members = {**members, "tie_word_embeddings": tied, "vocab_size": 512}
    drop = {"architectures", "model_type"}
    hf = copy.deepcopy({name: value for name, value in members.items() if name not in drop})
    with torch.device("meta"):
        reference = (
            Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**hf))
            if text is MOE
            else Qwen3_5ForCausalLM(Qwen3_5TextConfig(**hf))
        )
    expected = {name: tuple(tensor.shape) for name, tensor in reference.named_parameters()}
    model = ModelConfig.from_artifact({"text": members}, "components")
    assert sources(component_inventory(model, "text")) == expected


@pytest.mark.parametrize("text", [DENSE, MOE], ids=["dense", "moe"])
def test_sources_are_covered_exactly_once(text: dict[str, Any]) -> None:
    model = full_model(text)
    for component in model.components:
        covered: dict[str, list[tuple[int, int]]] = defaultdict(list)
        rows: dict[str, int] = {}
        for spec in component_inventory(model, component):
            if spec.source is None or spec.shares is not None:
                continue
            rows[spec.source.tensor] = spec.source.row_count
            covered[spec.source.tensor] += spec.source.rows.spans(0, spec.source.rows.rows)
        for tensor, spans in covered.items():
            edges = sorted(spans)
            assert edges[0][0] == 0
            assert edges[-1][1] == rows[tensor]
            assert all(left[1] == right[0] for left, right in itertools.pairwise(edges)), tensor


@pytest.mark.parametrize("text", [DENSE, MOE], ids=["dense", "moe"])
def test_shapes_agree_with_sources(text: dict[str, Any]) -> None:
    for spec in inventory(full_model(text)):
        assert spec.source is not None
        for source in filter(None, (spec.source, spec.source.alternative)):
            assert source.rows.rows * source.columns == spec.elements, spec.name
            assert math.prod(source.shape) == source.row_count * source.columns


@pytest.mark.parametrize("text", [DENSE, MOE], ids=["dense", "moe"])
def test_names_and_uses_are_unique_and_groups_refer_to_parameters(text: dict[str, Any]) -> None:
    model = full_model(text)
    specs = {spec.name: spec for spec in inventory(model, proposal_rows=64)}
    assert len(specs) == len(inventory(model, proposal_rows=64))
    uses = [(spec.name, use.input) for spec in specs.values() for use in spec.uses]
    assert len(uses) == len(set(uses))
    grouped = [name for group in packing_groups(model) for name in group.parameters]
    assert len(grouped) == len(set(grouped))
    for group in packing_groups(model):
        assert {name for part in group.fallback for name in part} <= set(group.parameters)
        tails = {specs[name].shape[1:] for name in group.parameters}
        assert len(tails) == 1


def test_formats_of_parameters_without_uses() -> None:
    for spec in inventory(full_model(DENSE), proposal_rows=64):
        if spec.uses or spec.name == "text/token_embedding":
            assert spec.direct is None
        elif spec.name == "proposal/token_ids":
            assert spec.direct is Format.INT32
        elif spec.name.endswith(("gdn/a_log", "gdn/dt_bias")):
            assert spec.direct is Format.FP32
        else:
            assert spec.direct is Format.BF16


def test_named_inputs() -> None:
    uses = {spec.name: [use.input for use in spec.uses] for spec in inventory(full_model(MOE), 64)}
    block = "text/layers/0/"
    assert uses["text/output_head"] == [f"{c}/final_hidden" for c in ("text", "mtp", "dflash", "dflash2")]
    assert uses["proposal/head"] == [f"{c}/final_hidden" for c in ("mtp", "dflash", "dflash2")]
    assert uses[f"{block}gdn/z"] == [f"{block}mixer_input"]
    assert uses[f"{block}gdn/output"] == [f"{block}gdn/gated_output"]
    assert uses["text/layers/3/attention/gate"] == ["text/layers/3/mixer_input"]
    assert uses["text/layers/3/attention/output"] == ["text/layers/3/attention/gated_output"]
    assert uses[f"{block}moe/experts/3/down"] == [f"{block}moe/experts/3/product"]
    assert uses[f"{block}moe/shared/down"] == [f"{block}moe/shared/product"]
    assert uses[f"{block}moe/shared_score"] == [f"{block}ffn_input"]
    assert uses["mtp/layers/0/moe/router"] == ["mtp/layers/0/ffn_input"]
    assert uses["vision/merger/fc2"] == ["vision/merger/activation"]
    assert uses["vision/layers/2/attention/key"] == ["vision/layers/2/attention_input"]
    assert uses["dflash/layers/1/attention/context_key"] == ["dflash/context_input"]
    assert uses["dflash2/layers/1/attention/output"] == ["dflash2/layers/1/attention_output"]
    assert uses["dflash2/layers/0/mlp_conv/kernel_projection"] == ["dflash2/layers/0/mlp_conv_input"]
    assert uses["dflash2/candidate_selector/hidden_projection"] == ["dflash2/final_hidden"]


def test_row_blocks_split_at_block_borders() -> None:
    rows = RowBlocks(begin=4, size=4, count=3, stride=8)
    selected = [row for begin, end in rows.spans(0, rows.rows) for row in range(begin, end)]
    assert selected == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]
    assert list(rows.spans(3, 9)) == [(7, 8), (12, 16), (20, 21)]
