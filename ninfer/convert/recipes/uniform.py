"""Recipes with one rule for every projection, and their `-cpu` twins, which also permit 8-bit activations.

Permission costs a little accuracy and lets the CPU kernels multiply integers. Projections that stay bf16 keep A16Only.
"""

from __future__ import annotations

from ninfer.artifact.formats import Format
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes.common import assign_head, assign_optional, keep_bf16


def bf16(recipe: Recipe) -> None:
    """Everything as in a bf16 checkpoint, bit for bit."""
    _everywhere(recipe, Format.BF16)


def q8(recipe: Recipe) -> None:
    """Q8 everywhere except the projections that stay bf16 in every recipe."""
    _everywhere(recipe, Format.Q8)
    keep_bf16(recipe)


def q4(recipe: Recipe) -> None:
    """Q4 projections and a Q6 vocabulary; optional components as in the official assignments."""
    _everywhere(recipe, Format.Q4)
    recipe.assign("text/token_embedding", Format.Q6)
    assign_head(recipe, Format.Q6)
    assign_optional(recipe)


def fp8(recipe: Recipe) -> None:
    """FP8 rows by `fp8_row_maxabs` everywhere except the projections that stay bf16 in every recipe."""
    _everywhere(recipe, Format.FP8_ROW)
    keep_bf16(recipe)


def q8_cpu(recipe: Recipe) -> None:
    """`q8` with 8-bit activations."""
    q8(recipe)
    recipe.permit_a8()


def q4_cpu(recipe: Recipe) -> None:
    """`q4` with 8-bit activations."""
    q4(recipe)
    recipe.permit_a8()


def _everywhere(recipe: Recipe, fmt: Format) -> None:
    for spec in recipe.free_parameters():
        recipe.assign(spec, fmt)
