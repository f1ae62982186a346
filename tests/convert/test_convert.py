"""Whole conversions: every parameter decodes to what an independent computation says, under every recipe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer import __version__
from ninfer.artifact.directory import ActivationPolicy, Directory, Proposal, ProposalDomain, WholeBinding
from ninfer.artifact.formats import Format
from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.validate import validate
from ninfer.convert import convert
from ninfer.convert.recipe import Recipe
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import inventory
from tests.checkpoints import Checkpoint, dense_checkpoint, moe_checkpoint, write_tensors
from tests.convert.expected import decoded_as, logical_parameters

UNIFORM = {"bf16": "bf16", "q8": "q8_g32_fp16", "fp8": "fp8_e4m3fn_row_bf16"}
KEPT_BF16 = ("a_projection", "b_projection", "router", "shared_score")


def formats_of(directory: Directory) -> dict[str, str]:
    """Format of every parameter's object."""
    return {
        name: directory.tensor(directory.parts(binding)[0].object).format
        for name, binding in directory.bindings.items()
    }


def check_values(artifact: Path, checkpoint: Checkpoint) -> None:
    """Every parameter of the artifact equals its source after a round trip through the format it is stored in."""
    text = checkpoint.config.get("text_config", checkpoint.config)
    expected = logical_parameters(checkpoint.tensors, text, checkpoint.config["tie_word_embeddings"])
    with ArtifactReader.open(artifact) as reader:
        formats = formats_of(reader.directory)
        assert set(formats) == set(expected)
        for name, values in expected.items():
            found = reader.decode_parameter(name, values.shape)
            np.testing.assert_array_equal(found, decoded_as(values, formats[name]), err_msg=name)


@pytest.mark.parametrize("recipe", ["bf16", "q8", "q4", "fp8", "groupwise"])
def test_dense_values(dense: Checkpoint, tmp_path: Path, recipe: str) -> None:
    convert(dense.path, tmp_path / "m.ninfer", recipe=recipe)
    check_values(tmp_path / "m.ninfer", dense)


@pytest.mark.parametrize("recipe", ["bf16", "q8", "q4", "fp8", "groupwise"])
def test_moe_values(moe: Checkpoint, tmp_path: Path, recipe: str) -> None:
    convert(moe.path, tmp_path / "m.ninfer", recipe=recipe)
    check_values(tmp_path / "m.ninfer", moe)


@pytest.mark.parametrize("recipe", ["bf16", "groupwise"])
def test_plain_tied_values(plain: Checkpoint, tmp_path: Path, recipe: str) -> None:
    convert(plain.path, tmp_path / "m.ninfer", recipe=recipe)
    check_values(tmp_path / "m.ninfer", plain)


@pytest.mark.parametrize("recipe", sorted(UNIFORM))
def test_uniform_recipes_give_every_projection_their_format(dense: Checkpoint, tmp_path: Path, recipe: str) -> None:
    convert(dense.path, tmp_path / "m.ninfer", recipe=recipe)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        formats = formats_of(reader.directory)
        used = {use.parameter for use in reader.directory.uses} | {"text/token_embedding"}
    for name in used:
        assert formats[name] == ("bf16" if name.endswith(KEPT_BF16) else UNIFORM[recipe]), name


def test_single_and_sharded_sources_give_the_same_objects(plain: Checkpoint, tmp_path: Path) -> None:
    dense_checkpoint(tmp_path / "sharded", tied=True, seed=1, shards=4)
    for name, source in (("a", plain.path), ("b", tmp_path / "sharded")):
        convert(source, tmp_path / f"{name}.ninfer", recipe="groupwise")
    with ArtifactReader.open(tmp_path / "a.ninfer") as left, ArtifactReader.open(tmp_path / "b.ninfer") as right:
        assert left.directory.objects == right.directory.objects
        for stored in left.directory.objects:
            np.testing.assert_array_equal(left.read_object(stored.id), right.read_object(stored.id))


def test_per_expert_sources_equal_fused_ones(tmp_path: Path) -> None:
    fused = moe_checkpoint(tmp_path / "fused")
    split = dict(fused.tensors)
    for name in [name for name in fused.tensors if ".experts." in name]:
        tensor, stem = split.pop(name), name.rsplit(".", 1)[0]
        for expert, rows in enumerate(tensor):
            if name.endswith("down_proj"):
                split[f"{stem}.{expert}.down_proj.weight"] = rows.contiguous()
            else:
                gate, up = rows.chunk(2)
                split[f"{stem}.{expert}.gate_proj.weight"] = gate.contiguous()
                split[f"{stem}.{expert}.up_proj.weight"] = up.contiguous()
    moe_checkpoint(tmp_path / "split")
    (tmp_path / "split" / "model.safetensors").unlink()
    write_tensors(tmp_path / "split", split, shards=2)
    for name in ("fused", "split"):
        convert(tmp_path / name, tmp_path / f"{name}.ninfer", recipe="groupwise")
    with (
        ArtifactReader.open(tmp_path / "fused.ninfer") as left,
        ArtifactReader.open(tmp_path / "split.ninfer") as right,
    ):
        assert left.directory.objects == right.directory.objects
        for stored in left.directory.objects:
            np.testing.assert_array_equal(left.read_object(stored.id), right.read_object(stored.id))


def test_every_stored_byte_is_legal(dense: Checkpoint, moe: Checkpoint, tmp_path: Path) -> None:
    for name, checkpoint in (("dense", dense), ("moe", moe)):
        convert(checkpoint.path, tmp_path / f"{name}.ninfer", recipe="groupwise", proposal=40)
        with ArtifactReader.open(tmp_path / f"{name}.ninfer") as reader:
            for stored in reader.directory.objects:
                if hasattr(stored, "shape"):
                    tensor = reader.tensor(stored.id)
                    validate(reader.read_object(stored.id), Format(tensor.format), tensor.shape, stored.id)


def test_bindings_and_uses_are_those_of_the_inventory(dense: Checkpoint, tmp_path: Path) -> None:
    convert(dense.path, tmp_path / "m.ninfer", recipe="q8", proposal=40)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        directory = reader.directory
    configs = {name: component.config for name, component in directory.components.items()}
    specs = inventory(ModelConfig.from_artifact(configs, "components"), proposal_rows=40)
    assert list(directory.bindings) == [spec.name for spec in specs]
    wanted = [(spec.name, use.input) for spec in specs for use in spec.uses]
    assert [(use.parameter, use.input) for use in directory.uses] == wanted
    for spec in specs:
        assert directory.elements(directory.binding(spec.name)) == spec.elements


def test_packing_of_the_dense_assignment(dense: Checkpoint, tmp_path: Path) -> None:
    convert(dense.path, tmp_path / "m.ninfer", recipe="groupwise")
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        objects = {stored.id for stored in reader.directory.objects}
    assert {
        "text/layers/3/attention/query+key",
        "text/layers/3/attention/gate+value",
        "text/layers/0/gdn/query+key",
        "text/layers/0/gdn/value+z",
        "text/layers/0/gdn/a_projection",
        "text/layers/0/gdn/b_projection",
        "text/layers/0/mlp/gate+up",
        "mtp/layers/0/attention/query+key+gate+value",
        "vision/layers/1/attention/query+key+value",
        "vision/layers/1/attention/query_bias+key_bias+value_bias",
    } <= objects


def test_packing_of_the_moe_assignment(moe: Checkpoint, tmp_path: Path) -> None:
    convert(moe.path, tmp_path / "m.ninfer", recipe="groupwise")
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        tensors = {stored.id: stored for stored in reader.directory.objects}
        down = reader.directory.parts(reader.directory.binding("text/layers/0/moe/experts/3/down"))
    assert {
        "text/layers/0/gdn/query+key+value+z",
        "text/layers/0/gdn/a_projection+b_projection",
        "text/layers/3/attention/query+key+gate+value",
        "text/layers/0/moe/experts/gate+up",
        "text/layers/0/moe/router+shared_score",
        "text/layers/0/moe/shared/gate+up",
        "mtp/layers/0/moe/experts/down",
    } <= set(tensors)
    assert [(part.object, part.begin, part.end) for part in down] == [
        ("text/layers/0/moe/experts/down", 3 * 128 * 64, 4 * 128 * 64)
    ]


def test_tied_head_is_one_object(plain: Checkpoint, tmp_path: Path) -> None:
    convert(plain.path, tmp_path / "m.ninfer", recipe="groupwise")
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        bindings = reader.directory.bindings
        assert bindings["text/output_head"] == bindings["text/token_embedding"] == WholeBinding("text/token_embedding")
        assert not any(stored.id == "text/output_head" for stored in reader.directory.objects)


def test_optional_components_share_no_object_with_text(dense: Checkpoint, tmp_path: Path) -> None:
    convert(dense.path, tmp_path / "m.ninfer", recipe="q8")
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        for name, binding in reader.directory.bindings.items():
            for part in reader.directory.parts(binding):
                assert part.object.split("/")[0] == name.split("/")[0]


@pytest.mark.parametrize(("recipe", "twin"), [("q8-cpu", "q8"), ("q4-cpu", "q4")])
def test_cpu_recipes_differ_in_permissions_only(dense: Checkpoint, tmp_path: Path, recipe: str, twin: str) -> None:
    directories = []
    for name in (recipe, twin):
        convert(dense.path, tmp_path / f"{name}.ninfer", recipe=name, proposal=40)
        with ArtifactReader.open(tmp_path / f"{name}.ninfer") as reader:
            directories.append(reader.directory)
    permissive, strict = directories
    assert permissive.objects == strict.objects
    assert permissive.bindings == strict.bindings
    formats = formats_of(permissive)
    for use in permissive.uses:
        quantised = formats[use.parameter] != "bf16"
        assert use.activation_policy is (ActivationPolicy.ALLOW_A8 if quantised else ActivationPolicy.A16_ONLY), use
    heads = {"text/output_head", "proposal/head", "text/layers/0/mlp/up"}
    assert heads <= {use.parameter for use in permissive.uses if formats[use.parameter] != "bf16"}
    assert {use.activation_policy for use in strict.uses} == {ActivationPolicy.A16_ONLY}


def test_permission_follows_the_format_and_what_is_said_later(plain: Checkpoint, tmp_path: Path) -> None:
    def override(recipe: Recipe) -> None:
        recipe.assign("text/layers/0/mlp/up", "bf16")
        recipe.assign("text/layers/0/mlp/down", "bf16", rows=(0, 8))
        recipe.use("text/layers/1/mlp/up", "A16Only")

    convert(plain.path, tmp_path / "m.ninfer", recipe="q8-cpu", overrides=[override])
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        policies = {use.parameter: use.activation_policy for use in reader.directory.uses}
    for name in ("text/layers/0/mlp/up", "text/layers/0/mlp/down", "text/layers/1/mlp/up"):
        assert policies[name] is ActivationPolicy.A16_ONLY
    assert policies["text/layers/0/mlp/gate"] is ActivationPolicy.ALLOW_A8
    assert policies["text/output_head"] is ActivationPolicy.ALLOW_A8


@pytest.mark.parametrize(("recipe", "policy"), [("q8", "A16Only"), ("fp8", "AllowA8")])
def test_default_policies(plain: Checkpoint, tmp_path: Path, recipe: str, policy: str) -> None:
    convert(plain.path, tmp_path / "m.ninfer", recipe=recipe)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        for use in reader.directory.uses:
            kept = use.parameter.endswith(KEPT_BF16)
            assert use.activation_policy is (ActivationPolicy.A16_ONLY if kept else ActivationPolicy(policy))


def test_components_configs_resources_and_provenance(dense: Checkpoint, tmp_path: Path) -> None:
    report = convert(dense.path, tmp_path / "m.ninfer", recipe="groupwise", name="tiny")
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        directory = reader.directory
        assert report.components == tuple(directory.components) == ("text", "vision", "mtp")
        assert directory.components["text"].target is None
        assert directory.components["mtp"].target == directory.components["vision"].target == "text"
        assert directory.components["text"].proposal == Proposal(ProposalDomain.FULL)
        assert directory.name == "tiny"
        for role in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            assert reader.resource(role) == (dense.path / role).read_bytes()
        for role in ("preprocessor_config.json", "video_preprocessor_config.json"):
            assert reader.resource(role, "vision") == (dense.path / role).read_bytes()
        provenance = json.loads(json.dumps(directory.provenance))
    assert provenance["version"] == __version__
    assert provenance["recipe"] == "groupwise"
    assert provenance["sources"]["base"]["directory"] == dense.path.name
    assert provenance["objects"]["text/layers/0/mlp/gate+up"] == {"method": "grouped_absmax", "source": "base"}
    assert str(dense.path) not in json.dumps(provenance)


def test_text_config_is_exact(dense: Checkpoint, tmp_path: Path) -> None:
    convert(dense.path, tmp_path / "m.ninfer", recipe="bf16", components=["text"])
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        (component,) = reader.directory.components.values()
    source = dense.config["text_config"]
    copied = (
        "hidden_size vocab_size num_hidden_layers max_position_embeddings rms_norm_eps layer_types num_attention_heads"
        " num_key_value_heads head_dim linear_num_key_heads linear_key_head_dim linear_num_value_heads"
        " linear_value_head_dim linear_conv_kernel_dim intermediate_size"
    )
    rope = {name: source["rope_parameters"][name] for name in ("rope_theta", "partial_rotary_factor", "mrope_section")}
    assert component.config == {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "tie_word_embeddings": False,
        "rope_parameters": rope,
        **{name: source[name] for name in copied.split()},
    }


def test_shards_of_the_artifact(dense: Checkpoint, tmp_path: Path) -> None:
    report = convert(dense.path, tmp_path / "m.ninfer", recipe="bf16", shard_limit=1_000_000)
    assert len(report.files) >= 3
    assert all(size <= 1_000_000 for _, size in report.files)
    check_values(tmp_path / "m.ninfer", dense)


def test_report_adds_up(dense: Checkpoint, tmp_path: Path) -> None:
    report = convert(dense.path, tmp_path / "m.ninfer", recipe="groupwise")
    source = sum(tensor.numel() * tensor.element_size() for tensor in dense.tensors.values())
    assert report.source_bytes == source
    assert report.artifact_bytes == (tmp_path / "m.ninfer").stat().st_size
    assert sum(stored.source_bytes for stored in report.objects) == source
    assert report.unused_tensors == ()
    assert report.peak_bytes > 0


def test_components_left_out_are_reported(dense: Checkpoint, tmp_path: Path) -> None:
    report = convert(dense.path, tmp_path / "m.ninfer", recipe="bf16", components=["text", "mtp"])
    assert report.components == ("text", "mtp")
    assert set(report.unused_tensors) == {name for name in dense.tensors if ".visual." in name}
