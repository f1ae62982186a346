"""The official recipes at the official geometry, against the published assignments; no data involved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact.formats import Format
from ninfer.convert.qwen3_5.source_config import from_hf
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes import RECIPES
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import SourceRoot, inventory, packing_groups
from tests.models.configs import DENSE, DFLASH2, MOE, VISION

LAYERS = {"num_hidden_layers": 64, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16}
MOE_LAYERS = {
    "num_hidden_layers": 40,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
    "num_experts": 3,
    "num_experts_per_tok": 2,
}


def run(name: str, text: dict[str, Any]) -> tuple[Recipe, dict[str, str]]:
    """The recipe after running, and `format[<source]` of every parameter."""
    moe = "num_experts" in text
    configs = {
        "text": text,
        "vision": {**VISION, "model_type": "qwen3_5_moe_vision" if moe else "qwen3_5_vision"},
        "mtp": {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]},
        "dflash2": DFLASH2,
    }
    model = ModelConfig.from_artifact(configs, "components")
    specs = inventory(model, proposal_rows=1024)
    recipe = Recipe(model, specs, packing_groups(model), ["base", "encoded"])
    RECIPES[name](recipe)
    recipe.check_shared()
    found = {}
    for spec in specs:
        if recipe.owner(spec.name) is None:
            (segment,) = recipe.segments(spec.name)
            source = segment.assignment.source
            found[spec.name] = segment.assignment.format.value + (f"<{source}" if source else "")
    return recipe, found


OPTIONAL = {
    "mtp/input_projection": "q8_g32_fp16",
    "mtp/layers/0/attention/gate": "q8_g32_fp16",
    "mtp/final_norm": "bf16",
    "dflash2/layers/0/mlp/down": "q8_g32_fp16",
    "dflash2/layers/0/mlp_conv/kernel_projection": "bf16",
    "dflash2/candidate_selector/hidden_projection": "bf16",
    "dflash2/candidate_selector/successor_codebook": "bf16",
    "vision/patch_embedding": "q6_g64_fp16",
    "vision/merger/fc1": "q8_g32_fp16",
    "vision/merger/fc2": "q8_g32_fp16",
    "vision/layers/5/attention/key": "q4_g64_fp16",
    "vision/layers/5/mlp/fc1": "q4_g64_fp16",
    "vision/layers/5/mlp/fc2": "q5_g64_fp16",
    "vision/layers/5/attention/output": "q5_g64_fp16",
    "proposal/head": "q4_g64_fp16",
    "proposal/token_ids": "int32",
}
BLOCK = {
    "text/layers/3/attention/query": "q4_g64_fp16",
    "text/layers/3/attention/key": "q4_g64_fp16",
    "text/layers/3/attention/gate": "q5_g64_fp16",
    "text/layers/3/attention/value": "q5_g64_fp16",
    "text/layers/3/attention/output": "q5_g64_fp16",
    "text/layers/0/gdn/query": "q4_g64_fp16",
    "text/layers/0/gdn/key": "q4_g64_fp16",
    "text/layers/0/gdn/value": "q5_g64_fp16",
    "text/layers/0/gdn/z": "q5_g64_fp16",
    "text/layers/0/gdn/output": "q5_g64_fp16",
    "text/layers/0/gdn/a_projection": "bf16",
    "text/layers/0/gdn/b_projection": "bf16",
    "text/layers/63/mlp/gate": "q4_g64_fp16",
    "text/layers/63/mlp/up": "q4_g64_fp16",
    "text/layers/63/mlp/down": "q5_g64_fp16",
}


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [("groupwise", "q6_g64_fp16"), ("qwen3_6_27b", "q6_g64_fp16"), ("qwen3_8_27b", "q8_g32_fp16")],
)
def test_dense_assignment(name: str, vocabulary: str) -> None:
    recipe, found = run(name, {**DENSE, **LAYERS})
    wanted = {**OPTIONAL, **BLOCK, "text/token_embedding": vocabulary, "text/output_head": vocabulary}
    assert {key: found[key] for key in wanted} == wanted
    grouped = {group.parameters for group in recipe.packing()}
    assert ("text/layers/0/gdn/a_projection", "text/layers/0/gdn/b_projection") not in grouped
    assert recipe.owner("dflash2/layers/0/attention/context_key") == "dflash2/layers/0/attention/key"


@pytest.mark.parametrize("name", ["q4", "q4-cpu"])
@pytest.mark.parametrize("text", [{**DENSE, **LAYERS}, {**MOE, **MOE_LAYERS}])
def test_four_bit_assignment(name: str, text: dict[str, Any]) -> None:
    _, found = run(name, text)
    wanted = {**OPTIONAL, "text/token_embedding": "q6_g64_fp16", "text/output_head": "q6_g64_fp16"}
    assert {key: found[key] for key in wanted} == wanted
    kept = ("a_projection", "b_projection", "router", "shared_score")
    for key, fmt in found.items():
        if key.startswith("text/layers/") and fmt not in ("fp32", "q4_g64_fp16"):
            assert fmt == "bf16"
            assert key.endswith(kept) or "norm" in key or key.endswith("convolution")


@pytest.mark.parametrize("name", ["groupwise", "qwen3_6_35b_a3b"])
def test_moe_assignment(name: str) -> None:
    _, found = run(name, {**MOE, **MOE_LAYERS})
    wanted = {
        **OPTIONAL,
        "text/token_embedding": "q8_g32_fp16",
        "text/output_head": "q6_g64_fp16",
        "text/layers/33/moe/experts/1/gate": "q4_g64_fp16",
        "text/layers/33/moe/experts/1/up": "q4_g64_fp16",
        **{f"text/layers/{layer}/moe/experts/2/down": "q5_g64_fp16" for layer in (0, 33, 35, 37)},
        **{f"text/layers/{layer}/moe/experts/2/down": "q6_g64_fp16" for layer in (34, 38, 39)},
        "text/layers/0/moe/shared/down": "q8_g32_fp16",
        "text/layers/0/gdn/query": "q8_g32_fp16",
        "text/layers/3/attention/output": "q8_g32_fp16",
        "text/layers/0/moe/router": "bf16",
        "text/layers/0/moe/shared_score": "bf16",
        "text/layers/0/gdn/a_projection": "bf16",
        "mtp/layers/0/moe/router": "bf16",
        "mtp/layers/0/moe/experts/0/down": "q8_g32_fp16",
    }
    assert {key: found[key] for key in wanted} == wanted


def test_nvfp4_assignment_of_qwen3_6() -> None:
    _, found = run("qwen3_6_27b_nvfp4", {**DENSE, **LAYERS})
    imported, kept = "nvfp4<encoded", "bf16"
    wanted = {
        **OPTIONAL,
        "text/token_embedding": "q8_g32_fp16",
        "text/output_head": "q8_g32_fp16",
        "text/layers/23/attention/query": kept,
        "text/layers/23/attention/value": kept,
        "text/layers/23/attention/output": imported,
        "text/layers/27/attention/query": imported,
        "text/layers/27/attention/gate": imported,
        "text/layers/3/attention/output": kept,
        "text/layers/7/attention/output": kept,
        "text/layers/11/attention/output": imported,
        "text/layers/4/gdn/output": kept,
        "text/layers/5/gdn/output": imported,
        "text/layers/0/gdn/query": imported,
        "text/layers/0/mlp/down": imported,
        "text/layers/60/gdn/a_projection": kept,
        "text/final_norm": kept,
    }
    assert {key: found[key] for key in wanted} == wanted


def test_nvfp4_assignment_of_qwen3_8() -> None:
    _, found = run("qwen3_8_27b_nvfp4", {**DENSE, **LAYERS})
    nvfp4, fp8, copied = "nvfp4<encoded", "fp8_e4m3fn_row_bf16<encoded", "bf16<encoded"
    wanted = {
        **OPTIONAL,
        "text/token_embedding": "fp8_e4m3fn_row_bf16",
        "text/output_head": fp8,
        "text/layers/55/mlp/down": nvfp4,
        "text/layers/56/mlp/down": fp8,
        "text/layers/0/gdn/z": fp8,
        "text/layers/3/attention/gate": fp8,
        "text/layers/0/gdn/a_projection": copied,
        "text/layers/0/input_norm": copied,
        "text/layers/3/attention/query_norm": copied,
        "text/layers/0/gdn/norm": copied,
        "text/final_norm": copied,
        "text/layers/0/gdn/a_log": "fp32",
    }
    assert {key: found[key] for key in wanted} == wanted


DENSE_ONLY = ("qwen3_6_27b", "qwen3_8_27b", "qwen3_6_27b_nvfp4", "qwen3_8_27b_nvfp4")


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("tied", [False, True])
def test_every_recipe_covers_its_architectures_and_refuses_the_other(name: str, tied: bool) -> None:
    texts = {"moe": {**MOE, **MOE_LAYERS}, "dense": {**DENSE, **LAYERS}}
    if name in DENSE_ONLY or name == "qwen3_6_35b_a3b":
        with pytest.raises(ConfigError, match="this recipe is for"):
            run(name, texts.pop("moe" if name in DENSE_ONLY else "dense"))
    for text in texts.values():
        _, found = run(name, {**text, "tie_word_embeddings": tied})
        assert set(found.values()) <= {f"{fmt.value}{suffix}" for fmt in Format for suffix in ("", "<encoded")}


@pytest.mark.shared
def test_the_real_weight_map_is_consumed_completely(shared_dir: Path) -> None:
    """Every tensor of the official Qwen3.8-27B checkpoint is some parameter's source, and the other way round."""
    configs = shared_dir / "data" / "configs"
    source = from_hf(json.loads((configs / "Qwen3.8-27B.config.json").read_text()), "config.json")
    weights = json.loads((configs / "Qwen3.8-27B.safetensors.index.json").read_text())["weight_map"]
    prefix = {SourceRoot.TOP: "", SourceRoot.TEXT: "model.language_model.", SourceRoot.VISION: "model.visual."}
    model = ModelConfig(source.text, source.vision, source.mtp)
    named = {prefix[spec.source.root] + spec.source.tensor for spec in inventory(model) if spec.source}
    assert named == set(weights)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["Qwen3.5-2B.text-only", "Qwen3.6-27B", "Qwen3.8-27B"])
def test_real_configs(shared_dir: Path, name: str) -> None:
    source = from_hf(json.loads((shared_dir / "data" / "configs" / f"{name}.config.json").read_text()), "config.json")
    assert source.ignored == ()
    assert source.mtp_problem is None
    assert (source.vision is None) == ("text-only" in name)
    assert source.text.tie_word_embeddings == ("2B" in name)
