"""`import_encoded`: FP8 and NVFP4 codes arrive unchanged, whichever way their scales are stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from ninfer.artifact.directory import ActivationPolicy
from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import convert
from ninfer.convert.methods import import_encoded
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes.uniform import bf16
from ninfer.errors import ConfigError
from tests.checkpoints import Checkpoint
from tests.convert.encoded_checkpoints import Convention, EncodedCheckpoint, encoded_twin
from tests.convert.expected import logical_parameters

MLP = r"model\.layers\.\d+\.mlp\.\w+"
ATTENTION = r"model\.layers\.3\.self_attn\.\w_proj"
QKV = r"model\.layers\.\d+\.linear_attn\.in_proj_qkv"


def run(plain: Checkpoint, encoded: EncodedCheckpoint, out: Path, *patterns: tuple[str, str]) -> None:
    """Convert with bf16 everywhere, except for imports from the source `encoded`."""

    def override(recipe: Recipe) -> None:
        for pattern, fmt in patterns:
            recipe.assign(pattern, fmt, import_encoded, source="encoded")

    convert(plain.path, out, recipe=bf16, overrides=[override], sources={"encoded": encoded.path})


def expected(plain: Checkpoint, encoded: EncodedCheckpoint) -> dict[str, NDArray[np.float32]]:
    values = {name: torch.from_numpy(value) for name, value in encoded.decoded.items()}
    return logical_parameters(values, plain.config, tied=False)


@pytest.mark.parametrize("convention", list(Convention))
def test_the_stated_value_decodes_alike_in_both_conventions(
    plain: Checkpoint, tmp_path: Path, convention: Convention
) -> None:
    """Code 0b0010 (1.0), block scale 448 and global 2688 or 1/2688 make 448 / 2688 = 0.16667."""
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP, convention=convention)
    file = encoded.path / "model.safetensors"
    tensors = load_file(file)
    packed = "weight_packed" if convention is Convention.COMPRESSED_TENSORS else "weight"
    module = "model.layers.0.mlp.gate_proj"
    tensors[f"{module}.{packed}"].fill_(0x22)
    tensors[f"{module}.weight_scale"].view(torch.uint8).fill_(0x7E)
    save_file(tensors, file)
    run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/mlp/gate", "nvfp4"))
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        values = reader.decode_parameter("text/layers/0/mlp/gate")
    np.testing.assert_allclose(values, 448 / 2688, rtol=1e-6)


@pytest.mark.parametrize("convention", list(Convention))
def test_nvfp4_values(plain: Checkpoint, tmp_path: Path, convention: Convention) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=f"{MLP}|{ATTENTION}|{QKV}", convention=convention)
    patterns = [("text/layers/*/mlp/*", "nvfp4"), ("text/layers/3/attention/[qgkvo]*[!m]", "nvfp4")]
    run(plain, encoded, tmp_path / "m.ninfer", *patterns, ("text/layers/0/gdn/value", "nvfp4"))
    wanted = expected(plain, encoded)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        for name in ("mlp/gate", "mlp/up", "mlp/down", "attention/query", "attention/gate", "attention/output"):
            full = f"text/layers/3/{name}"
            found = reader.decode_parameter(full, wanted[full].shape)
            np.testing.assert_allclose(found, wanted[full], rtol=1e-6, err_msg=name)
        value = reader.decode_parameter("text/layers/0/gdn/value", wanted["text/layers/0/gdn/value"].shape)
        np.testing.assert_allclose(value, wanted["text/layers/0/gdn/value"], rtol=1e-6)
        objects = {stored.id for stored in reader.directory.objects}
        uses = {use.parameter: use for use in reader.directory.uses}
        use = uses["text/layers/0/mlp/up"]
        assert use.activation_policy is ActivationPolicy.ALLOW_A4
        divisor = reader.decode_binding(use.auxiliaries["activation_input_divisor"])
    assert divisor == pytest.approx(64.0)
    assert "text/layers/3/attention/query+key+gate+value" in objects
    assert uses["text/output_head"].activation_policy is ActivationPolicy.A16_ONLY


def test_equal_divisors_pack_and_different_ones_do_not(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP)
    tensors = load_file(encoded.path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight_global_scale"][0] = 1344.0
    save_file(tensors, encoded.path / "model.safetensors")
    run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/*/mlp/*", "nvfp4"))
    wanted = expected(plain, encoded)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        objects = {stored.id for stored in reader.directory.objects}
        up = reader.decode_parameter("text/layers/1/mlp/up")
    assert "text/layers/0/mlp/gate+up" in objects
    assert {"text/layers/1/mlp/gate", "text/layers/1/mlp/up"} <= objects
    np.testing.assert_allclose(up, 2 * wanted["text/layers/1/mlp/up"], rtol=1e-6)


def test_without_activation_divisors_nothing_below_16_bits_is_permitted(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP, input_scales=False)
    run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/*/mlp/*", "nvfp4"))
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        policies = {use.parameter: use.activation_policy for use in reader.directory.uses}
    assert policies["text/layers/0/mlp/up"] is ActivationPolicy.A16_ONLY


def test_mixed_groups_resolve_each_module_by_its_own(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP, fp8=f"{ATTENTION}|{QKV}")
    patterns = [("text/layers/*/mlp/*", "nvfp4"), ("text/layers/3/attention/[qgkvo]*[!m]", "fp8")]
    run(plain, encoded, tmp_path / "m.ninfer", *patterns, ("text/layers/?/gdn/[qkv]*", "fp8"))
    wanted = expected(plain, encoded)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        policies = {use.parameter: use.activation_policy for use in reader.directory.uses}
        for name in (
            "0/mlp/down",
            "3/attention/query",
            "3/attention/gate",
            "3/attention/key",
            "2/gdn/key",
            "2/gdn/value",
        ):
            full = f"text/layers/{name}"
            found = reader.decode_parameter(full, wanted[full].shape)
            np.testing.assert_allclose(found, wanted[full], rtol=1e-6, err_msg=name)
    assert policies["text/layers/3/attention/query"] is ActivationPolicy.ALLOW_A8
    assert policies["text/layers/3/mlp/down"] is ActivationPolicy.ALLOW_A4


def test_fp8_codes_and_scales_are_untouched(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, fp8=MLP)
    run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/*/mlp/down", "fp8"))
    tensors = load_file(encoded.path / "model.safetensors")
    source = tensors["model.layers.2.mlp.down_proj.weight"].view(torch.uint8).numpy()
    scales = tensors["model.layers.2.mlp.down_proj.weight_scale"].view(torch.uint8).numpy()
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        data = reader.read_object("text/layers/2/mlp/down")
    np.testing.assert_array_equal(data[: source.size], source.reshape(-1))
    np.testing.assert_array_equal(data[-scales.size :], scales.reshape(-1))


def test_a_per_tensor_fp8_scale_is_repeated(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, fp8=MLP)
    name = "model.layers.0.mlp.down_proj"
    tensors = load_file(encoded.path / "model.safetensors")
    tensors[f"{name}.weight_scale"] = torch.tensor(0.25)
    save_file(tensors, encoded.path / "model.safetensors")
    run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/mlp/down", "fp8"))
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        found = reader.decode_parameter("text/layers/0/mlp/down")
    np.testing.assert_array_equal(found, tensors[f"{name}.weight"].float().numpy() * 0.25)


def test_an_encoded_checkpoint_can_be_the_main_source(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP)

    def imports(recipe: Recipe) -> None:
        recipe.assign("text/token_embedding", "bf16")
        for name in recipe.free_parameters():
            mlp = "/mlp/" in name
            recipe.assign(name, "nvfp4" if mlp else "bf16", import_encoded if mlp else None)

    convert(encoded.path, tmp_path / "m.ninfer", recipe=imports)
    wanted = expected(plain, encoded)["text/layers/3/mlp/down"]
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        np.testing.assert_allclose(reader.decode_parameter("text/layers/3/mlp/down"), wanted, rtol=1e-6)


def test_zero_scales_clear_their_codes(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP)
    tensors = load_file(encoded.path / "model.safetensors")
    tensors["model.layers.0.mlp.gate_proj.weight_scale"].view(torch.uint8)[3, 2] = 0
    save_file(tensors, encoded.path / "model.safetensors")
    run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/mlp/gate", "nvfp4"))
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        codes = reader.read_object("text/layers/0/mlp/gate")[: 256 * 64].reshape(256, 64)
        assert not reader.decode_parameter("text/layers/0/mlp/gate")[3, 32:48].any()
    assert not (codes[3, 16:24] & 0x77).any()


MODULE = "model.layers.0.mlp.gate_proj"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight_scale", torch.full((256, 8), 0xFE, dtype=torch.uint8).view(torch.float8_e4m3fn), "negative or NaN"),
        (
            "weight_scale",
            torch.zeros(256, 4, dtype=torch.uint8).view(torch.float8_e4m3fn),
            r"expected F8_E4M3 \[256, 8\]",
        ),
        ("weight_packed", torch.zeros(256, 32, dtype=torch.uint8), r"weight_packed: expected U8 \[256, 64\]"),
        ("weight_global_scale", torch.tensor([0.0]), "weight_global_scale: expected one positive finite number"),
        ("weight_global_scale", torch.tensor([float("inf")]), "one positive finite number"),
        ("weight_scale_2", torch.tensor(0.1), "both weight_global_scale and weight_scale_2"),
        ("weight_global_scale", None, "neither weight_global_scale nor weight_scale_2"),
    ],
)
def test_bad_nvfp4_sources(
    plain: Checkpoint, tmp_path: Path, name: str, value: torch.Tensor | None, message: str
) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP)
    tensors = load_file(encoded.path / "model.safetensors")
    tensors.pop(f"{MODULE}.{name}", None)
    save_file(tensors | ({} if value is None else {f"{MODULE}.{name}": value}), encoded.path / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/mlp/gate", "nvfp4"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoded"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight_scale", torch.full((256, 1), 0.1), "scales are no bf16 values; use fp8_row_maxabs"),
        ("weight_scale", torch.full((256, 1), -0.5), "finite and not negative"),
        ("weight_scale", torch.full((2, 1), 0.5), "no per-row or per-tensor scale"),
        ("weight", torch.full((256, 128), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn), "FP8 codes that are NaN"),
    ],
)
def test_bad_fp8_sources(plain: Checkpoint, tmp_path: Path, name: str, value: torch.Tensor, message: str) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, fp8=MLP)
    tensors = load_file(encoded.path / "model.safetensors")
    save_file({**tensors, f"{MODULE}.{name}": value}, encoded.path / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/mlp/gate", "fp8"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoded"]


def test_wrong_wishes_are_named(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP)
    with pytest.raises(ConfigError, match=r"linear_attn\.out_proj' is not quantised"):
        run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/gdn/output", "nvfp4"))
    with pytest.raises(ConfigError, match=r"is stored as nvfp4 in .*, not fp8"):
        run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/mlp/gate", "fp8"))
    with pytest.raises(ConfigError, match="has no quantization_config"):
        run(plain, EncodedCheckpoint(plain.path, {}), tmp_path / "m.ninfer", ("text/layers/0/mlp/gate", "nvfp4"))
    with pytest.raises(ConfigError, match="stored as codes; assign import_encoded"):
        convert(encoded.path, tmp_path / "m.ninfer", recipe="bf16")
    with pytest.raises(ConfigError, match="needs the source 'encoded'; pass --source encoded=DIR"):
        convert(plain.path, tmp_path / "m.ninfer", recipe="qwen3_6_27b_nvfp4")


def test_schemes_that_no_format_holds(plain: Checkpoint, tmp_path: Path) -> None:
    encoded = encoded_twin(tmp_path / "encoded", plain, nvfp4=MLP)
    config = json.loads((encoded.path / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= {"num_bits": 4, "type": "int"}
    (encoded.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config_groups\.group_0: module .* cannot be imported"):
        run(plain, encoded, tmp_path / "m.ninfer", ("text/layers/0/mlp/gate", "nvfp4"))
