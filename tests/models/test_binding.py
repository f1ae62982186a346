"""What the binder takes from an artifact's Uses: a fused call may do what every one of its projections permits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import convert
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes.uniform import bf16
from ninfer.models.qwen3_5.binding import Binder
from tests.checkpoints import dense_checkpoint

GDN, ATTENTION, MLP = "text/layers/0/gdn/", "text/layers/3/attention/", "text/layers/0/mlp/"


def permissions(recipe: Recipe) -> None:
    """Eight bits at some projections, A16Only at the rest; permission for four bits includes eight."""
    for name in (f"{GDN}query", f"{GDN}value", f"{ATTENTION}query", f"{MLP}up", "text/output_head"):
        recipe.use(name, "AllowA8")
    recipe.use(f"{MLP}gate", "AllowA4")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("binding")
    out = root / "m.ninfer"
    convert(dense_checkpoint(root / "source", seed=1).path, out, recipe=bf16, overrides=[permissions])
    return out


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        ((f"{GDN}query", f"{GDN}key", f"{GDN}value"), False),
        ((f"{GDN}query", f"{GDN}value"), True),
        ((f"{GDN}key",), False),
        ((f"{ATTENTION}query",), True),
        ((f"{ATTENTION}output",), False),
        ((f"{MLP}gate", f"{MLP}up"), True),
        (("text/output_head",), True),
        (("text/token_embedding",), False),
        (("text/output_head", "text/token_embedding"), False),
    ],
)
def test_eight_bits_need_every_use(artifact: Path, names: tuple[str, ...], allowed: bool) -> None:
    with ArtifactReader.open(artifact) as reader:
        assert Binder(reader, "m").linear(*names).allow_a8 is allowed
