"""Recipes that give every projection and the vocabulary one format."""

from __future__ import annotations

from ninfer.artifact.formats import Format
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes.common import keep_bf16


def bf16(recipe: Recipe) -> None:
    """Everything as in a bf16 checkpoint, bit for bit."""
    _everywhere(recipe, Format.BF16)


def q8(recipe: Recipe) -> None:
    """Q8 everywhere except the projections that stay bf16 in every recipe."""
    _everywhere(recipe, Format.Q8)
    keep_bf16(recipe)


def fp8(recipe: Recipe) -> None:
    """FP8 rows by `fp8_row_maxabs` everywhere except the projections that stay bf16 in every recipe."""
    _everywhere(recipe, Format.FP8_ROW)
    keep_bf16(recipe)


def _everywhere(recipe: Recipe, fmt: Format) -> None:
    for spec in recipe.free_parameters():
        recipe.assign(spec, fmt)
