"""The component configs of an artifact: exact member sets, exact round trips, errors that name the member."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import (
    Architecture,
    LayerType,
    ModelConfig,
    MoeConfig,
    MtpConfig,
    TextConfig,
    VisionConfig,
)
from ninfer.models.qwen3_5.config_draft import DraftConfig, DraftKind
from tests.models.configs import DENSE, DFLASH, DFLASH2, MOE, VISION


def test_dense_values_and_round_trip() -> None:
    config = TextConfig.from_artifact(DENSE, "text")
    assert config.architecture is Architecture.DENSE
    assert config.layer_types == (LayerType.GDN, LayerType.GDN, LayerType.GDN, LayerType.ATTENTION)
    assert config.attention is not None
    assert config.attention.rotary_dim == 64
    assert config.gdn is not None
    assert config.gdn.conv_width == 2 * 2048 + 6144
    assert config.to_artifact() == DENSE


def test_moe_round_trip() -> None:
    config = TextConfig.from_artifact(MOE, "text")
    assert config.ffn == MoeConfig(256, 8, 512, 512)
    assert config.to_artifact() == MOE


def test_a_model_of_gdn_layers_needs_no_attention_members() -> None:
    absent = {"num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters"}
    value = {name: member for name, member in DENSE.items() if name not in absent}
    value |= {"layer_types": ["linear_attention"] * 4}
    config = TextConfig.from_artifact(value, "text")
    assert config.attention is None
    assert config.to_artifact() == value
    with pytest.raises(ConfigError, match="num_attention_heads: required by the mtp component"):
        ModelConfig(config, mtp=MtpConfig(Architecture.DENSE))


@pytest.mark.parametrize("name", sorted(DENSE))
def test_each_missing_member_is_named(name: str) -> None:
    value = {member: DENSE[member] for member in DENSE if member != name}
    with pytest.raises(ConfigError, match=name):
        TextConfig.from_artifact(value, "components.text.config")


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(hidden_size=True), r"text\.hidden_size: expected an integer"),
        (lambda c: c.update(hidden_size=5120.0), r"text\.hidden_size: expected an integer"),
        (lambda c: c.update(hidden_size=0), r"text\.hidden_size"),
        (lambda c: c.update(rms_norm_eps="1e-6"), r"text\.rms_norm_eps: expected a number"),
        (lambda c: c.update(rms_norm_eps=float("inf")), r"text\.rms_norm_eps: expected a positive finite"),
        (lambda c: c.update(tie_word_embeddings=0), r"text\.tie_word_embeddings: expected true or false"),
        (lambda c: c.update(architectures=["LlamaForCausalLM"]), r"text\.architectures\[0\]"),
        (lambda c: c.update(architectures=DENSE["architectures"] * 2), r"text\.architectures: expected exactly"),
        (lambda c: c.update(model_type="qwen3_5_moe_text"), r"text\.model_type"),
        (lambda c: c.update(num_hidden_layers=5), r"text\.layer_types: 4 entries for num_hidden_layers 5"),
        (lambda c: c["layer_types"].__setitem__(1, "mamba"), r"text\.layer_types\[1\]"),
        (lambda c: c.update(num_key_value_heads=5), r"text\.num_key_value_heads: does not divide"),
        (lambda c: c["rope_parameters"].update(mrope_section=[11, 11, 11]), r"mrope_section: sums to 33"),
        (lambda c: c["rope_parameters"].update(mrope_section=[11, 21]), r"mrope_section: expected 3"),
        (lambda c: c["rope_parameters"].update(rope_type="yarn"), r"rope_parameters: unknown members"),
        (lambda c: c.update(linear_num_value_heads=40), r"linear_num_value_heads: not a multiple"),
        (lambda c: c.update(num_experts=8), r"text: unknown members \['num_experts'\]"),
        (lambda c: c.update(attention_bias=False), r"text: unknown members \['attention_bias'\]"),
    ],
)
def test_wrong_text_members_are_named(edit: Edit, message: str) -> None:
    value = copy.deepcopy(DENSE)
    edit(value)
    with pytest.raises(ConfigError, match=message):
        TextConfig.from_artifact(value, "text")


def test_more_selected_experts_than_experts() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok: larger than num_experts 256"):
        TextConfig.from_artifact({**MOE, "num_experts_per_tok": 300}, "text")


def test_vision_round_trip_and_widths() -> None:
    config = VisionConfig.from_artifact(VISION, "vision")
    assert (config.patch_width, config.merged_width) == (1536, 4608)
    assert config.to_artifact() == VISION
    with pytest.raises(ConfigError, match="vision: unknown members"):
        VisionConfig.from_artifact({**VISION, "in_channels": 3}, "vision")
    with pytest.raises(ConfigError, match="num_heads"):
        VisionConfig.from_artifact({**VISION, "num_heads": 7}, "vision")


def test_draft_round_trips() -> None:
    first = DraftConfig.from_artifact(DraftKind.DFLASH, DFLASH, "dflash")
    second = DraftConfig.from_artifact(DraftKind.DFLASH2, DFLASH2, "dflash2")
    assert first.selector is None
    assert second.selector is not None
    assert second.selector.selector_rank == 256
    assert first.to_artifact() == DFLASH
    assert second.to_artifact() == DFLASH2


def test_draft_members_are_exact() -> None:
    missing = {name: value for name, value in DFLASH.items() if name != "sliding_window"}
    with pytest.raises(ConfigError, match="sliding_window: required"):
        DraftConfig.from_artifact(DraftKind.DFLASH, missing, "dflash")
    wrong = {**DFLASH2, "architectures": DFLASH["architectures"]}
    with pytest.raises(ConfigError, match=r"dflash_config: unknown members \['conv_group_size'"):
        DraftConfig.from_artifact(DraftKind.DFLASH, wrong, "dflash")


def test_whole_model() -> None:
    configs: dict[str, Any] = {
        "text": DENSE,
        "vision": VISION,
        "mtp": {"architectures": ["Qwen3_5MTP"]},
        "dflash": DFLASH,
        "dflash2": DFLASH2,
    }
    model = ModelConfig.from_artifact(configs, "components")
    assert model.components == ("text", "vision", "mtp", "dflash", "dflash2")
    assert model.speculative == ("mtp", "dflash", "dflash2")
    assert model.to_artifact() == configs


def test_components_must_belong_together() -> None:
    with pytest.raises(ConfigError, match=r"components\.mtp\.config: belongs to the other architecture"):
        ModelConfig.from_artifact({"text": DENSE, "mtp": {"architectures": ["Qwen3_5MoeMTP"]}}, "components")
    with pytest.raises(ConfigError, match="unknown components"):
        ModelConfig.from_artifact({"text": DENSE, "audio": {}}, "components")
    with pytest.raises(ConfigError, match="text component is missing"):
        ModelConfig.from_artifact({"vision": VISION}, "components")
