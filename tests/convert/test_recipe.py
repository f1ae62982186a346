"""Recipe statements: patterns, row ranges, grouping, separating, sharing, custom methods, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ninfer.artifact.directory import ActivationPolicy, Part, PartsBinding, WholeBinding
from ninfer.artifact.formats import Format
from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import convert
from ninfer.convert.methods import Method, cast_direct, fp8_row_maxabs, grouped_absmax, import_encoded
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes import RECIPES, load_recipe
from ninfer.convert.recipes.uniform import bf16, q8
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import inventory, packing_groups
from tests.checkpoints import Checkpoint, dense_checkpoint
from tests.convert.expected import decoded_as, logical_parameters
from tests.models.configs import DENSE, MOE

DOWN = "text/layers/0/mlp/down"


def recipe_for(text: dict[str, Any], **changes: Any) -> Recipe:
    configs = {
        "text": {**text, **changes},
        "mtp": {"architectures": ["Qwen3_5MoeMTP" if "num_experts" in text else "Qwen3_5MTP"]},
    }
    model = ModelConfig.from_artifact(configs, "components")
    return Recipe(model, inventory(model), packing_groups(model), ["base", "encoded"])


def test_later_statements_win_and_stars_cross_slashes() -> None:
    recipe = recipe_for(DENSE)
    recipe.assign("text/*/down", "q4")
    recipe.assign(DOWN, Format.Q8)
    assert [segment.assignment.format for segment in recipe.segments(DOWN)] == [Format.Q8]
    assert recipe.segments("text/layers/1/mlp/down")[0].assignment.format is Format.Q4
    assert recipe.segments("text/layers/1/mlp/down")[0].assignment.method is grouped_absmax


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (lambda r: r.assign("text/layers/9/*", "q4"), "'text/layers/9/\\*' matches no parameter"),
        (lambda r: r.use("nothing", "AllowA8"), "'nothing' matches no parameter"),
        (lambda r: r.separate("*/nothing"), "matches no parameter"),
        (lambda r: r.group("text/*/down", "nothing"), "'nothing' matches no parameter"),
        (lambda r: r.assign(DOWN, "q7"), "unknown format 'q7'; expected one of q4, q5"),
        (lambda r: r.assign(DOWN, "q4", cast_direct), "method cast_direct cannot produce q4_g64_fp16"),
        (lambda r: r.assign(DOWN, "q4", fp8_row_maxabs), "fp8_row_maxabs cannot produce"),
        (lambda r: r.assign(DOWN, "bf16", grouped_absmax), "grouped_absmax cannot produce bf16"),
        (lambda r: r.assign(DOWN, "q8", import_encoded), "import_encoded cannot produce q8"),
        (lambda r: r.assign(DOWN, "t2"), "no reference encoder; give a custom method"),
        (lambda r: r.assign(DOWN, "nvfp4", lambda values, fmt: None), "cannot produce nvfp4"),
        (lambda r: r.assign(DOWN, "q4", source="other"), "needs the source 'other'; pass --source other=DIR"),
        (lambda r: r.assign("text/final_norm", "q8"), "text/final_norm must be bf16"),
        (lambda r: r.assign("*/a_log", "bf16"), "a_log must be fp32"),
        (lambda r: r.assign(DOWN, "q4", rows=(10, 5121)), r"rows \[10, 5121\) are not within its 5120 rows"),
        (lambda r: r.use("text/final_norm", "AllowA8"), "text/final_norm has no Uses"),
        (lambda r: r.use(DOWN, "AllowA2"), "unknown activation policy 'AllowA2'"),
        (lambda r: r.use(DOWN, auxiliaries={"scale": 1}), "unknown auxiliary 'scale'"),
        (lambda r: r.use(DOWN, auxiliaries={"activation_input_divisor": -1}), "one positive finite number"),
        (lambda r: r.use(DOWN, auxiliaries={"hadamard_signs": np.ones(64)}), r"\+1 or -1 for each of 17408 inputs"),
        (lambda r: r.group(DOWN, "mtp/layers/0/mlp/down"), "belongs to one component"),
        (lambda r: r.share(DOWN, "text/layers/*/mlp/down"), "must name one parameter that owns its data"),
        (lambda r: r.share(DOWN, "text/layers/0/mlp/up"), "have different shapes"),
        (lambda r: r.share(DOWN, "mtp/layers/0/mlp/down"), "own component or of text"),
        (lambda r: r.assign(DOWN, "q4", "absmax"), "unknown method 'absmax'; expected one of cast_direct"),
    ],
)
def test_statements_that_make_no_sense(statement: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        statement(recipe_for(DENSE))


def test_unassigned_parameters_are_named() -> None:
    recipe = recipe_for(DENSE)
    with pytest.raises(ConfigError, match=rf"{DOWN}: rows \[0, 5120\) have no format"):
        recipe.segments(DOWN)
    recipe.assign(DOWN, "q4", rows=(0, 100))
    with pytest.raises(ConfigError, match=r"rows \[100, 5120\) have no format"):
        recipe.segments(DOWN)


def test_row_ranges_replace_what_they_cover() -> None:
    recipe = recipe_for(DENSE)
    recipe.assign(DOWN, "q8")
    recipe.assign(DOWN, "q4", rows=(100, 200))
    recipe.assign(DOWN, "bf16", rows=(150, 300))
    found = [(s.begin, s.end, s.assignment.format) for s in recipe.segments(DOWN)]
    assert found == [(0, 100, Format.Q8), (100, 150, Format.Q4), (150, 300, Format.BF16), (300, 5120, Format.Q8)]


def test_a_tied_pair_must_be_assigned_alike() -> None:
    recipe = recipe_for(DENSE, tie_word_embeddings=True)
    recipe.assign("text/token_embedding", "q8")
    recipe.assign("text/output_head", "q6")
    with pytest.raises(ConfigError, match=r'call recipe.separate\("text/output_head"\)'):
        recipe.check_shared()
    recipe.assign("text/output_head", "q8")
    recipe.check_shared()


def test_matches_may_be_empty() -> None:
    recipe = recipe_for(MOE)
    assert recipe.matches("text/layers/*/mlp/*") == ()
    assert recipe.matches("text/layers/0/moe/router") == ("text/layers/0/moe/router",)
    assert len(recipe.matches("text/layers/?/moe/experts/1[0-2]/down")) == 12


def test_row_ranges_in_an_artifact(plain: Checkpoint, tmp_path: Path) -> None:
    def split(recipe: Recipe) -> None:
        recipe.assign(DOWN, "q4", rows=(0, 40))
        recipe.assign(DOWN, "fp8", rows=(40, 100))

    convert(plain.path, tmp_path / "m.ninfer", recipe=q8, overrides=[split])
    source = logical_parameters(plain.tensors, plain.config, tied=True)[DOWN]
    parts = ((0, 40, "q4_g64_fp16"), (40, 100, "fp8_e4m3fn_row_bf16"), (100, 128, "q8_g32_fp16"))
    wanted = np.concatenate([decoded_as(source[begin:end], fmt) for begin, end, fmt in parts])
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        np.testing.assert_array_equal(reader.decode_parameter(DOWN, source.shape), wanted)
        assert reader.directory.binding(DOWN) == PartsBinding(
            tuple(Part(f"{DOWN}[{begin}:{end}]", 0, (end - begin) * 256) for begin, end, _ in parts)
        )
        policies = {use.parameter: use.activation_policy for use in reader.directory.uses}
    assert policies[DOWN] is ActivationPolicy.A16_ONLY


def test_group_separate_and_share_in_an_artifact(plain: Checkpoint, tmp_path: Path) -> None:
    def override(recipe: Recipe) -> None:
        recipe.group("text/layers/[01]/mlp/down")
        recipe.group("text/layers/2/mlp/up", "text/layers/2/mlp/gate")
        recipe.separate("text/layers/3/mlp/*")
        recipe.group("text/layers/1/gdn/z", "text/layers/1/gdn/value")
        recipe.separate("text/layers/0/gdn/z")
        recipe.separate("text/output_head")
        recipe.assign("text/output_head", "q6")
        recipe.share("text/layers/3/mlp/down", "text/layers/2/mlp/down")

    convert(plain.path, tmp_path / "m.ninfer", recipe=q8, overrides=[override])
    source = logical_parameters(plain.tensors, plain.config, tied=True)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        bindings = reader.directory.bindings
        objects = {stored.id for stored in reader.directory.objects}
        parts = reader.directory.parts(bindings["text/layers/1/mlp/down"])
        up = reader.decode_parameter("text/layers/2/mlp/up", (256, 128))
    assert [(part.object, part.begin) for part in parts] == [("text/layers/down", 128 * 256)]
    assert "text/layers/2/mlp/up+gate" in objects
    assert {"text/layers/3/mlp/gate", "text/layers/3/mlp/up"} <= objects
    assert {"text/layers/0/gdn/query+key", "text/layers/0/gdn/z", "text/layers/0/gdn/value"} <= objects
    assert {"text/layers/1/gdn/query+key", "text/layers/1/gdn/z+value"} <= objects
    assert {"text/token_embedding", "text/output_head"} <= objects
    assert bindings["text/layers/3/mlp/down"] == bindings["text/layers/2/mlp/down"]
    np.testing.assert_array_equal(up, decoded_as(source["text/layers/2/mlp/up"], "q8_g32_fp16"))


def test_a_group_whose_formats_disagree_falls_back(plain: Checkpoint, tmp_path: Path) -> None:
    convert(plain.path, tmp_path / "m.ninfer", recipe=q8, overrides=[lambda r: r.assign("*/3/attention/value", "q4")])
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        objects = {stored.id for stored in reader.directory.objects}
    names = {"text/layers/3/attention/query+key", "text/layers/3/attention/gate", "text/layers/3/attention/value"}
    assert names <= objects


def test_a_demanded_group_must_agree(plain: Checkpoint, tmp_path: Path) -> None:
    def override(recipe: Recipe) -> None:
        recipe.group("text/layers/0/mlp/gate", "text/layers/0/mlp/up")
        recipe.assign("text/layers/0/mlp/up", "q4", "grouped_absmax")

    with pytest.raises(ConfigError, match=r"group: formats or methods of text/layers/0/mlp/gate, .*up differ"):
        convert(plain.path, tmp_path / "m.ninfer", recipe=q8, overrides=[override])


def test_uses_and_auxiliaries_in_an_artifact(plain: Checkpoint, tmp_path: Path) -> None:
    def override(recipe: Recipe) -> None:
        recipe.use("text/layers/*/mlp/*", "AllowA8", auxiliaries={"activation_input_divisor": 2.5})
        recipe.use(DOWN, "A16Only")

    convert(plain.path, tmp_path / "m.ninfer", recipe=q8, overrides=[override])
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        uses = {use.parameter: use for use in reader.directory.uses}
        binding = uses[DOWN].auxiliaries["activation_input_divisor"]
        assert binding == WholeBinding("text/auxiliaries/activation_input_divisor/0")
        assert reader.decode_binding(binding) == np.float32(2.5)
        assert reader.tensor(binding.object).shape == ()
    assert uses[DOWN].activation_policy is ActivationPolicy.A16_ONLY
    assert uses["text/layers/0/mlp/up"].activation_policy is ActivationPolicy.ALLOW_A8
    assert (
        uses["text/layers/0/mlp/up"].auxiliaries == uses["text/layers/2/mlp/up"].auxiliaries == uses[DOWN].auxiliaries
    )


def test_hadamard_signs_in_an_artifact(tmp_path: Path) -> None:
    source = dense_checkpoint(tmp_path / "source", tied=True, text_config={"intermediate_size": 1024})
    signs = np.where(np.arange(1024) % 3, 1.0, -1.0)
    recipe = [lambda r: r.use(DOWN, auxiliaries={"hadamard_signs": signs})]
    convert(source.path, tmp_path / "m.ninfer", recipe=q8, overrides=recipe)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        (use,) = (use for use in reader.directory.uses if use.parameter == DOWN)
        np.testing.assert_array_equal(reader.decode_binding(use.auxiliaries["hadamard_signs"]), signs)


def ternary(values: NDArray[np.float32], fmt: Format) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Signs of large weights, with the mean magnitude of each group as its scale."""
    groups = np.abs(values).reshape(len(values), -1, fmt.spec.group)
    scales = groups.mean(axis=-1).astype(np.float16)
    threshold = np.repeat(scales.astype(np.float32), fmt.spec.group, axis=1) / 2
    return (np.sign(values) * (np.abs(values) > threshold)).astype(np.int8), scales


def test_a_custom_method(plain: Checkpoint, tmp_path: Path) -> None:
    report = convert(
        plain.path,
        tmp_path / "m.ninfer",
        recipe=q8,
        overrides=[lambda r: r.assign("text/layers/*/mlp/down", "t2", ternary)],
        block_bytes=4096,
    )
    source = logical_parameters(plain.tensors, plain.config, tied=True)[DOWN]
    codes, scales = ternary(source, Format.T2)
    wanted = codes * np.repeat(scales.astype(np.float32), 128, axis=1)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        np.testing.assert_array_equal(reader.decode_parameter(DOWN), wanted)
    assert {stored.method for stored in report.objects if stored.id == DOWN} == {"custom:ternary"}


@pytest.mark.parametrize(
    ("fmt", "result", "message"),
    [
        ("q4", lambda v: v, r"must return \(codes, scales\)"),
        ("q4", lambda v: (np.full(v.shape, 8, np.int8), np.ones((len(v), 4))), r"integers in \[-8, 7\]"),
        ("q4", lambda v: (np.ones(v.shape, np.int8), np.zeros((len(v), 4))), "a zero scale needs zero codes"),
        ("q4", lambda v: (np.ones(v.shape, np.int8), np.ones((len(v), 5))), r"of shape \[\d+, 4\]"),
        ("q4", lambda v: (np.ones((3, 3), np.int8), np.ones((3, 1))), r"returned codes \[3, 3\]"),
        ("fp8", lambda v: (np.full(v.shape, 0x7F, np.uint8), np.ones(len(v))), "without NaN"),
        ("fp8", lambda v: (np.ones(v.shape, np.uint8), np.full(len(v), 0.1)), "must be bf16 values"),
        ("bf16", lambda v: v[:, :5], "returned shape"),
    ],
)
def test_what_custom_methods_return_is_checked(
    plain: Checkpoint, tmp_path: Path, fmt: str, result: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        convert(
            plain.path,
            tmp_path / "m.ninfer",
            recipe=q8,
            overrides=[lambda r: r.assign(DOWN, fmt, lambda values, fmt: result(values))],
        )
    assert DOWN in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_custom_direct_and_fp8_methods(plain: Checkpoint, tmp_path: Path) -> None:
    def halve(values: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
        return values / 2

    def ones(values: NDArray[np.float32], fmt: Format) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        return np.full(values.shape, 0x38, np.uint8), np.full(len(values), 0.5, np.float32)

    def override(recipe: Recipe) -> None:
        recipe.assign("text/layers/0/mlp/up", "bf16", halve)
        recipe.assign("text/layers/1/mlp/up", "fp8", ones)

    convert(plain.path, tmp_path / "m.ninfer", recipe=q8, overrides=[override])
    source = logical_parameters(plain.tensors, plain.config, tied=True)["text/layers/0/mlp/up"]
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        np.testing.assert_array_equal(reader.decode_parameter("text/layers/0/mlp/up"), source / 2)
        assert (reader.decode_parameter("text/layers/1/mlp/up") == 0.5).all()


def test_user_files(plain: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from ninfer.convert.recipes.uniform import bf16\n"
        "def recipe(recipe):\n    bf16(recipe)\n"
        "def override(recipe):\n    recipe.assign('text/*/mlp/*', 'q5')\n"
        "def other(recipe):\n    bf16(recipe)\n    recipe.assign('text/*/mlp/*', 'q6')\n"
    )
    plainer = tmp_path / "plainer.py"
    plainer.write_text("def recipe(recipe):\n    recipe.assign('text/*/mlp/*', 'bf16')\n")
    overridden: list[str] = [str(file)]
    for out, recipe, overrides, fmt in (
        ("a", str(file), [], "bf16"),
        ("b", f"{file}:other", [], "q6_g64_fp16"),
        ("c", f"{file}:other", overridden, "q5_g64_fp16"),
        ("d", f"{file}:other", [str(plainer)], "bf16"),
    ):
        report = convert(plain.path, tmp_path / f"{out}.ninfer", recipe=recipe, overrides=overrides)
        assert {stored.format for stored in report.objects if stored.id == DOWN} == {fmt}
        with ArtifactReader.open(tmp_path / f"{out}.ninfer") as reader:
            assert (reader.directory.provenance or {})["recipe"] == Path(recipe).name


def test_recipes_that_cannot_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("raise ValueError('boom')")
    empty = tmp_path / "empty.py"
    empty.write_text("recipe = 3")
    for name, message in (
        ("q9", "unknown recipe 'q9'; expected one of bf16, q8, q4, fp8, q8-cpu"),
        (str(tmp_path / "absent.py"), r"absent\.py: recipe file is missing"),
        (str(file), r"bad\.py: recipe file failed: ValueError: boom"),
        (str(empty), r"empty\.py: defines no function 'recipe'"),
        (f"{empty}:convert", "defines no function 'convert'"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_recipe(name)


def test_methods_have_their_official_names() -> None:
    assert [method.name for method in (cast_direct, grouped_absmax, fp8_row_maxabs, import_encoded)] == [
        "cast_direct",
        "grouped_absmax",
        "fp8_row_maxabs",
        "import_encoded",
    ]
    assert isinstance(cast_direct, Method)
    assert RECIPES["bf16"] is bf16
