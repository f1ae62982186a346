"""What several recipes share."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer.artifact.formats import Format
from ninfer.convert.recipe import Recipe

KEPT_BF16 = ("*/gdn/a_projection", "*/gdn/b_projection", "*/moe/router", "*/moe/shared_score")
"""Small projections whose outputs steer decays and routing; quantising them saves nothing and costs accuracy."""

DRAFT_BF16 = ("*_conv/kernel_projection", "*/candidate_selector/hidden_projection")

_VISION = (
    ("vision/patch_embedding", Format.Q6),
    ("vision/merger/fc?", Format.Q8),
    ("vision/layers/*/attention/query", Format.Q4),
    ("vision/layers/*/attention/key", Format.Q4),
    ("vision/layers/*/attention/value", Format.Q4),
    ("vision/layers/*/attention/output", Format.Q5),
    ("vision/layers/*/mlp/fc1", Format.Q4),
    ("vision/layers/*/mlp/fc2", Format.Q5),
)


def assign_present(recipe: Recipe, table: Iterable[tuple[str, Format]]) -> None:
    """Assign each pattern that matches; a table covers both architectures and all components."""
    for pattern, fmt in table:
        if recipe.matches(pattern):
            recipe.assign(pattern, fmt)


def assign_head(recipe: Recipe, fmt: Format) -> None:
    """Give the output head a format of its own, unless it is the embedding."""
    if recipe.owner("text/output_head") is None:
        recipe.assign("text/output_head", fmt)


def keep_bf16(recipe: Recipe) -> None:
    assign_present(recipe, [(pattern, Format.BF16) for pattern in (*KEPT_BF16, *DRAFT_BF16)])


def assign_optional(recipe: Recipe) -> None:
    """MTP and drafters Q8, vision by its own table, the proposal head Q4."""
    for component in recipe.model.speculative:
        for name in recipe.free_parameters(f"{component}/*"):
            recipe.assign(name, Format.Q8)
    assign_present(recipe, _VISION)
    assign_present(recipe, [("proposal/head", Format.Q4)])
    keep_bf16(recipe)
