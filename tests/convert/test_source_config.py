"""Hugging Face configs: both shapes are normalised; what is not computed is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ninfer.convert.qwen3_5.draft_source import draft_from_hf
from ninfer.convert.qwen3_5.source_config import from_hf
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import TextConfig
from ninfer.models.qwen3_5.config_draft import DraftKind
from tests.models.configs import DENSE, DFLASH, DFLASH2, MOE, VISION

TEXT: dict[str, Any] = {
    **{name: value for name, value in DENSE.items() if name not in ("architectures", "layer_types")},
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "hidden_act": "silu",
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {**DENSE["rope_parameters"], "rope_type": "default", "mrope_interleaved": True},
}
WRAPPED: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": TEXT,
    "tie_word_embeddings": False,
    "vision_config": {
        **VISION,
        "model_type": "qwen3_5",
        "hidden_act": "gelu_pytorch_tanh",
        "out_hidden_size": 5120,
        "in_channels": 3,
        "deepstack_visual_indexes": [],
    },
}
FLAT: dict[str, Any] = {**TEXT, "architectures": ["Qwen3_5ForCausalLM"]}


@pytest.mark.parametrize("config", [WRAPPED, FLAT], ids=["text_config", "flat"])
def test_both_shapes_give_the_same_text_config(config: dict[str, Any]) -> None:
    assert from_hf(config, "config.json").text.to_artifact() == DENSE


def test_vision_is_normalised() -> None:
    source = from_hf(WRAPPED, "config.json")
    assert source.vision is not None
    assert source.vision.to_artifact() == VISION
    assert from_hf({**WRAPPED, "language_model_only": True}, "config.json").vision is None
    assert from_hf(FLAT, "config.json").vision is None


def test_moe_is_normalised() -> None:
    text = {**{name: value for name, value in MOE.items() if name != "architectures"}, "norm_topk_prob": True}
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": text}
    assert from_hf(config, "config.json").text.to_artifact() == MOE


def test_an_explicit_list_of_layers_wins_over_the_interval() -> None:
    layers = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    source = from_hf({**FLAT, "layer_types": layers}, "config.json")
    assert source.text.to_artifact()["layer_types"] == layers


def test_rope_members_may_stand_beside_the_rope_object() -> None:
    rope = {"mrope_section": [11, 11, 10], "rope_type": "default"}
    flat = {**FLAT, "rope_parameters": rope, "rope_theta": 10000000, "partial_rotary_factor": 0.25}
    assert from_hf(flat, "config.json").text.to_artifact() == DENSE


def test_the_model_type_stands_in_for_missing_architectures() -> None:
    flat = {name: value for name, value in FLAT.items() if name != "architectures"}
    assert from_hf(flat, "config.json").text.to_artifact() == DENSE


def test_unknown_fields_are_listed_and_known_ones_are_not() -> None:
    source = from_hf({**WRAPPED, "text_config": {**TEXT, "frobnicate": 3, "dtype": "bfloat16"}, "mystery": 1}, "c.json")
    assert source.ignored == ("c.json.mystery", "c.json.text_config.frobnicate")


def test_mtp_that_is_not_computed_is_only_a_problem_for_mtp() -> None:
    assert "mtp_num_hidden_layers" in (from_hf({**FLAT, "mtp_num_hidden_layers": 2}, "c").mtp_problem or "")
    assert "dedicated" in (from_hf({**FLAT, "mtp_use_dedicated_embeddings": True}, "c").mtp_problem or "")
    assert from_hf({**FLAT, "mtp_num_hidden_layers": 0}, "c").mtp_problem is None


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(architectures=["LlamaForCausalLM"]), r"c\.architectures\[0\]"),
        (lambda c: c.update(model_type="qwen3_5_moe"), r"c\.model_type: 'qwen3_5_moe' contradicts"),
        (lambda c: c["text_config"].update(model_type="llama"), r"text_config\.model_type: 'llama' contradicts"),
        (lambda c: c["text_config"].update(attention_bias=True), r"text_config\.attention_bias: True is not supported"),
        (lambda c: c["text_config"].update(hidden_act="gelu"), r"hidden_act: 'gelu' is not supported, only 'silu'"),
        (lambda c: c["text_config"].update(attn_output_gate=False), "attn_output_gate"),
        (lambda c: c["text_config"].update(output_gate_type="relu"), "output_gate_type"),
        (lambda c: c["text_config"].update(sliding_window=4096), "sliding_window: 4096 is not supported, only null"),
        (lambda c: c["text_config"].update(mlp_only_layers=[3]), "mlp_only_layers"),
        (lambda c: c["text_config"].update(rope_scaling={"factor": 4}), "rope_scaling"),
        (lambda c: c["text_config"]["rope_parameters"].update(rope_type="yarn"), "rope_type: 'yarn' is not supported"),
        (lambda c: c["text_config"]["rope_parameters"].update(factor=4.0), r"rope_parameters\.factor: scaled rotary"),
        (lambda c: c["text_config"]["rope_parameters"].update(mrope_interleaved=False), "mrope_interleaved"),
        (lambda c: c["text_config"]["rope_parameters"].update(mrope_section=[11, 11, 11]), "sums to 33"),
        (lambda c: c["text_config"].pop("full_attention_interval"), "layer_types: missing"),
        (lambda c: c["text_config"].update(layer_types=["mamba"] * 4), r"layer_types\[0\]"),
        (lambda c: c["text_config"].pop("hidden_size"), r"text_config\.hidden_size: required member is missing"),
        (lambda c: c["text_config"].update(tie_word_embeddings=True), "tie_word_embeddings: False contradicts"),
        (lambda c: c["vision_config"].update(deepstack_visual_indexes=[5]), r"vision_config\.deepstack_visual_indexes"),
        (lambda c: c["vision_config"].update(hidden_act="quick_gelu"), r"vision_config\.hidden_act"),
        (lambda c: c["vision_config"].update(in_channels=1), r"vision_config\.in_channels"),
        (lambda c: c["vision_config"].update(out_hidden_size=4096), "must equal the text hidden_size 5120"),
        (lambda c: c["vision_config"].update(model_type="clip"), r"'clip' is not a Qwen3\.5 vision tower"),
    ],
)
def test_refusals_name_the_field(edit: Edit, message: str) -> None:
    config = copy.deepcopy(WRAPPED)
    edit(config)
    with pytest.raises(ConfigError, match=message):
        from_hf(config, "c")


def test_routing_without_renormalisation_is_refused() -> None:
    with pytest.raises(ConfigError, match="norm_topk_prob: False is not supported"):
        from_hf({**MOE, "norm_topk_prob": False}, "c")


TARGET = TextConfig.from_artifact(
    {**DENSE, "num_hidden_layers": 64, "layer_types": ["linear_attention", "full_attention"] * 32}, "text"
)


@pytest.mark.parametrize(("kind", "config"), [(DraftKind.DFLASH, DFLASH), (DraftKind.DFLASH2, DFLASH2)])
def test_drafts_are_normalised(kind: DraftKind, config: dict[str, Any]) -> None:
    flash = {**config["dflash_config"], "block_size": 16}
    source = {**config, "hidden_size": 5120, "vocab_size": 248320, "hidden_act": "silu", "dflash_config": flash}
    source["rope_theta"] = source.pop("rope_parameters")["rope_theta"]
    assert draft_from_hf(kind, source, "c", TARGET).to_artifact() == config


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"hidden_size": 4096}, "hidden_size: drafts for another model, the target has 5120"),
        ({"vocab_size": 1000}, "vocab_size: drafts for another model"),
        ({"attention_bias": True}, "attention_bias: True is not supported"),
        ({"dflash_config": {"target_layer_ids": [1, 64], "mask_token_id": 1}}, "target_layer_ids: the target has 64"),
        ({"architectures": ["DFlash2DraftModel"]}, r"architectures\[0\]: expected one of \['DFlashDraftModel'\]"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn"}}, "rope_type: 'yarn' is not supported"),
    ],
)
def test_drafts_for_something_else(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draft_from_hf(DraftKind.DFLASH, {**DFLASH, **members}, "c", TARGET)
