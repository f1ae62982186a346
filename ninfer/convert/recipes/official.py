"""The official assignments of the 27B dense and the 35B-A3B MoE models, and of their NVFP4 variants.

Patterns are tables: a later line wins over an earlier one. Variants that import codes take them from a second
source, given as `--source encoded=DIR`.
"""

from __future__ import annotations

from ninfer.artifact.formats import Format
from ninfer.convert.methods import fp8_row_maxabs, import_encoded
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes.common import assign_head, assign_optional, assign_present, keep_bf16
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import Architecture

ENCODED = "encoded"
_BLOCK = "text/layers/*/"
_DENSE = (
    (f"{_BLOCK}attention/query", Format.Q4),
    (f"{_BLOCK}attention/key", Format.Q4),
    (f"{_BLOCK}attention/gate", Format.Q5),
    (f"{_BLOCK}attention/value", Format.Q5),
    (f"{_BLOCK}attention/output", Format.Q5),
    (f"{_BLOCK}gdn/query", Format.Q4),
    (f"{_BLOCK}gdn/key", Format.Q4),
    (f"{_BLOCK}gdn/value", Format.Q5),
    (f"{_BLOCK}gdn/z", Format.Q5),
    (f"{_BLOCK}gdn/output", Format.Q5),
    (f"{_BLOCK}mlp/gate", Format.Q4),
    (f"{_BLOCK}mlp/up", Format.Q4),
    (f"{_BLOCK}mlp/down", Format.Q5),
)
_MIXERS = ("attention/query", "attention/key", "attention/gate", "attention/value", "attention/output")
_GDN = ("gdn/query", "gdn/key", "gdn/value", "gdn/z", "gdn/output")
_MLP = ("mlp/gate", "mlp/up", "mlp/down")
_SHARED = ("moe/shared/gate", "moe/shared/up", "moe/shared/down")
_MOE = (
    *((f"{_BLOCK}{name}", Format.Q8) for name in (*_MIXERS, *_GDN, *_SHARED)),
    (f"{_BLOCK}moe/experts/*/gate", Format.Q4),
    (f"{_BLOCK}moe/experts/*/up", Format.Q4),
    (f"{_BLOCK}moe/experts/*/down", Format.Q5),
    *((f"text/layers/{layer}/moe/experts/*/down", Format.Q6) for layer in (34, 38, 39)),
)


def groupwise(recipe: Recipe) -> None:
    """The official group-wise assignment of the model's architecture."""
    _groupwise(recipe, Format.Q6)


def qwen3_6_27b(recipe: Recipe) -> None:
    """Qwen3.6-27B: the dense assignment with a Q6 vocabulary."""
    _require(recipe, Architecture.DENSE)
    _groupwise(recipe, Format.Q6)


def qwen3_8_27b(recipe: Recipe) -> None:
    """Qwen3.8-27B: the dense assignment with a Q8 vocabulary."""
    _require(recipe, Architecture.DENSE)
    _groupwise(recipe, Format.Q8)


def qwen3_6_35b_a3b(recipe: Recipe) -> None:
    """Qwen3.6-35B-A3B: the MoE assignment."""
    _require(recipe, Architecture.MOE)
    _groupwise(recipe, Format.Q6)


def qwen3_6_27b_nvfp4(recipe: Recipe) -> None:
    """Qwen3.6-27B with NVFP4 block projections imported from the source `encoded`."""
    _require(recipe, Architecture.DENSE)
    assign_optional(recipe)
    recipe.assign("text/token_embedding", Format.Q8)
    assign_head(recipe, Format.Q8)
    _import_blocks(recipe, (*_MIXERS, *_GDN, *_MLP), Format.NVFP4, range(recipe.model.text.num_layers))
    keep_bf16(recipe)
    early = [f"text/layers/{layer}/{name}" for layer in range(24) for name in _MIXERS[:4]]
    single = ["text/layers/3/attention/output", "text/layers/7/attention/output", "text/layers/4/gdn/output"]
    assign_present(recipe, [(name, Format.BF16) for name in (*early, *single)])


def qwen3_8_27b_nvfp4(recipe: Recipe) -> None:
    """Qwen3.8-27B: NVFP4 MLPs below layer 56, FP8 elsewhere, imported from the source `encoded`."""
    _require(recipe, Architecture.DENSE)
    assign_optional(recipe)
    recipe.assign("text/token_embedding", Format.FP8_ROW, fp8_row_maxabs)
    if recipe.owner("text/output_head") is None:
        recipe.assign("text/output_head", Format.FP8_ROW, import_encoded, source=ENCODED)
    layers = range(recipe.model.text.num_layers)
    _import_blocks(recipe, (*_MIXERS, *_GDN, *_MLP), Format.FP8_ROW, layers)
    _import_blocks(recipe, _MLP, Format.NVFP4, layers[:56])
    copied = ("gdn/a_projection", "gdn/b_projection", "gdn/norm", "attention/query_norm", "attention/key_norm")
    for name in (*copied, "input_norm", "post_attention_norm"):
        if recipe.matches(f"{_BLOCK}{name}"):
            recipe.assign(f"{_BLOCK}{name}", Format.BF16, source=ENCODED)
    recipe.assign("text/final_norm", Format.BF16, source=ENCODED)


def _groupwise(recipe: Recipe, dense_vocabulary: Format) -> None:
    assign_optional(recipe)
    if recipe.model.text.architecture is Architecture.DENSE:
        assign_present(recipe, _DENSE)
        recipe.assign("text/token_embedding", dense_vocabulary)
        assign_head(recipe, dense_vocabulary)
    else:
        assign_present(recipe, _MOE)
        recipe.assign("text/token_embedding", Format.Q8)
        assign_head(recipe, Format.Q6)
    keep_bf16(recipe)
    if recipe.model.text.architecture is Architecture.DENSE and recipe.matches(f"{_BLOCK}gdn/a_projection"):
        recipe.separate(f"{_BLOCK}gdn/?_projection")


def _import_blocks(recipe: Recipe, names: tuple[str, ...], fmt: Format, layers: range) -> None:
    for layer in layers:
        for name in names:
            if recipe.matches(f"text/layers/{layer}/{name}"):
                recipe.assign(f"text/layers/{layer}/{name}", fmt, import_encoded, source=ENCODED)


def _require(recipe: Recipe, architecture: Architecture) -> None:
    if recipe.model.text.architecture is not architecture:
        raise ConfigError(f"recipe: this recipe is for {architecture.value}; use groupwise")
