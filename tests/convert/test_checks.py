"""Everything that is refused before a byte is written, and what failures leave behind: nothing."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from ninfer.convert import ConvertPhase, ConvertProgress, convert
from ninfer.errors import ArtifactError, ConfigError, NinferError
from tests.checkpoints import Checkpoint

Copy = Callable[[Checkpoint], Path]
SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def refused(source: Path, message: str, **options: Any) -> None:
    """The conversion raises, and the folder of the target stays empty."""
    target = source.parent / "out"
    target.mkdir()
    with pytest.raises(NinferError, match=message):
        convert(source, target / "m.ninfer", recipe="q8", **options)
    assert list(target.iterdir()) == []


def test_a_missing_directory_or_config(tmp_path: Path, dense: Checkpoint, copied: Copy) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        convert(tmp_path / "nowhere", tmp_path / "m.ninfer")
    source = copied(dense)
    (source / "config.json").unlink()
    refused(source, r"config\.json: file is missing")


def test_no_tensors_at_all(dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    for file in source.glob("*.safetensors*"):
        file.unlink()
    refused(source, r"holds no \*\.safetensors file")


def test_a_shard_named_in_the_index_but_absent(dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    (source / SHARD).unlink()
    refused(source, f"{SHARD}: named in .* but absent")


def test_a_file_shorter_than_its_header(dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    data = (source / SHARD).read_bytes()
    (source / SHARD).write_bytes(data[:-10])
    refused(source, f"{SHARD}: has {len(data) - 10} bytes, its header describes {len(data)}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes cannot hold a safetensors header"),
        (struct.pack("<Q", 1 << 40) + b"{}", "cannot hold a safetensors header of 1099511627776 bytes"),
        (struct.pack("<Q", 2) + b"[]", "its header is no JSON object"),
        (struct.pack("<Q", 4) + b"nope", "not a safetensors file"),
        (struct.pack("<Q", 9) + b'{"a": 12}', "header entry of tensor 'a' is malformed"),
    ],
)
def test_files_that_are_no_safetensors(dense: Checkpoint, copied: Copy, data: bytes, message: str) -> None:
    source = copied(dense)
    (source / SHARD).write_bytes(data)
    refused(source, message)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 6]}, "takes 8 bytes, not 6"),
        ({"dtype": "I4", "shape": [4], "data_offsets": [0, 2]}, "unknown dtype 'I4'"),
        ({"dtype": "BF16", "shape": [2, -2], "data_offsets": [0, 8]}, "malformed"),
    ],
)
def test_header_entries_that_contradict_themselves(
    dense: Checkpoint, copied: Copy, entry: dict[str, Any], message: str
) -> None:
    source = copied(dense)
    text = json.dumps({"x": entry}).encode()
    (source / SHARD).write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    refused(source, message)


def test_a_header_that_lists_a_tensor_twice(dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    one = '"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
    text = f"{{{one}, {one}}}".encode()
    (source / SHARD).write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    refused(source, r"header lists \['x'\] twice")


def test_a_tensor_in_two_files(plain: Checkpoint, dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    edit_tensors(source / SHARD, lambda tensors: tensors.update(load_file(source / SHARD.replace("2-", "1-", 1))))
    refused(source, "is in two files")
    shutil.rmtree(source.parent / "out")
    shutil.rmtree(source)
    source = copied(plain)
    shutil.copy(source / "model.safetensors", source / "copy.safetensors")
    refused(source, r"is in two files, .*copy\.safetensors and .*model\.safetensors")


def test_an_index_that_disagrees_with_its_shards(dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    moved = SHARD.replace("2-", "1-", 1)
    edit_json(source / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": moved, "ghost": SHARD}))
    refused(source, "tensor '(ghost|lm_head.weight)' is not in .* where the index puts it")


def test_a_tensor_that_the_index_does_not_list(dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    edit_json(source / INDEX, lambda index: index["weight_map"].pop("lm_head.weight"))
    refused(source, r"does not list tensor 'lm_head\.weight'")


@pytest.mark.parametrize("name", ["../model.safetensors", "sub/x.safetensors", ".."])
def test_shard_names_stay_in_the_directory(dense: Checkpoint, copied: Copy, name: str) -> None:
    source = copied(dense)
    edit_json(source / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": name}))
    refused(source, "is not a plain file name")


class TensorDamage(NamedTuple):
    """One tensor replaced (or, with None, removed), and what the error must say."""

    tensor: str
    value: torch.Tensor | None
    message: str


@pytest.mark.parametrize(
    "damage",
    [
        TensorDamage(
            "model.layers.0.mlp.gate_proj.weight", None, r"gate_proj\.weight' .*layers/0/mlp/gate\) is missing"
        ),
        TensorDamage("model.norm.weight", torch.zeros(64).bfloat16(), r"shape \[64\], the config needs \[128\]"),
        TensorDamage("model.norm.weight", torch.zeros(128, dtype=torch.int32), "dtype I32, expected BF16, F16 or F32"),
        TensorDamage("model.norm.weight", torch.zeros(128).double(), "dtype F64, expected BF16"),
        TensorDamage("model.layers.3.self_attn.q_proj.bias", torch.zeros(512), "is not part of Qwen3_5ForCausalLM"),
        TensorDamage("lm_head.weight", torch.zeros(512, 128).bfloat16(), "tie_word_embeddings is true, but lm_head"),
    ],
)
def test_wrong_tensors(plain: Checkpoint, copied: Copy, damage: TensorDamage) -> None:
    source = copied(plain)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(damage.tensor, None)
        tensors.update({} if damage.value is None else {damage.tensor: damage.value})

    edit_tensors(source / "model.safetensors", change)
    refused(source, damage.message)


def test_a_redundant_equal_head_is_fine(plain: Checkpoint, copied: Copy, tmp_path: Path) -> None:
    source = copied(plain)
    embedding = plain.tensors["model.embed_tokens.weight"]
    edit_tensors(source / "model.safetensors", lambda tensors: tensors.update({"lm_head.weight": embedding.float()}))
    assert convert(source, tmp_path / "m.ninfer", recipe="bf16").components == ("text",)


def test_an_untied_model_needs_its_head(plain: Checkpoint, copied: Copy) -> None:
    source = copied(plain)
    edit_json(source / "config.json", lambda config: config.update(tie_word_embeddings=False))
    refused(source, r"lm_head\.weight' \(parameter text/output_head\) is missing")


def test_a_non_finite_weight_is_named(plain: Checkpoint, copied: Copy) -> None:
    source = copied(plain)
    name = "model.layers.2.mlp.up_proj.weight"
    edit_tensors(source / "model.safetensors", lambda tensors: tensors[name].view(-1).__setitem__(77, torch.inf))
    refused(source, "text/layers/2/mlp/up: the source holds a non-finite value")


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("tokenizer.json", r"tokenizer\.json: file is missing; give it with --resource tokenizer\.json=FILE"),
        ("generation_config.json", r"generation_config\.json: file is missing; give it with --resource"),
        ("chat_template.jinja", r"hold no chat template; give one with --resource chat_template\.jinja=FILE"),
    ],
)
def test_missing_resources(plain: Checkpoint, copied: Copy, role: str, message: str) -> None:
    source = copied(plain)
    (source / role).unlink()
    refused(source, message)


def test_broken_resources(plain: Checkpoint, copied: Copy) -> None:
    source = copied(plain)
    (source / "generation_config.json").write_text("{")
    refused(source, r"generation_config\.json: not valid JSON")
    (source.parent / "out").rmdir()
    (source / "generation_config.json").write_text("{}")
    (source / "chat_template.jinja").write_text("")
    refused(source, r"chat_template\.jinja: file is empty")


def test_more_tokens_than_rows(plain: Checkpoint, copied: Copy) -> None:
    source = copied(plain)
    edit_json(source / "tokenizer.json", lambda value: value["model"]["vocab"].update({"zzz": 600}))
    refused(source, "601 tokens do not fit the config's 512 rows")


def test_options(dense: Checkpoint, copied: Copy) -> None:
    source = copied(dense)
    for options, message in (
        ({"components": ["text", "dflash"]}, "which holds text, vision, mtp; give it with --source dflash=DIR"),
        ({"components": ["text", "audio"]}, "--components audio: not in the source"),
        ({"components": ["mtp"]}, "every artifact holds text"),
        ({"resources": {"logo.png": source}}, "no such role here; expected one of tokenizer.json"),
        ({"proposal_ranking": source / "config.json"}, "--proposal-ranking: needs --proposal"),
        ({"components": ["text"], "proposal": 64}, "--proposal: needs one of the components mtp, dflash, dflash2"),
        ({"shard_limit": 5000}, "limit"),
        ({"sources": {"dflsh": source}}, "--source dflsh: no component and no statement of the recipe takes"),
        ({"sources": {"encoded": source / "nowhere"}}, "not a directory"),
    ):
        refused(source, message, **options)
        (source.parent / "out").rmdir()


def test_disk_space(plain: Checkpoint, copied: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(copied(plain), "bytes are needed, 1,000 are free")


def test_an_existing_target_needs_overwrite(plain: Checkpoint, tmp_path: Path) -> None:
    target = tmp_path / "m.ninfer"
    target.write_text("precious")
    with pytest.raises(ArtifactError, match="the file exists"):
        convert(plain.path, target)
    assert target.read_text() == "precious"
    convert(plain.path, target, overwrite=True)
    assert target.stat().st_size > 10_000


@pytest.mark.parametrize("phase", list(ConvertPhase))
def test_interruption_leaves_nothing(dense: Checkpoint, tmp_path: Path, phase: ConvertPhase) -> None:
    def interrupt(progress: ConvertProgress) -> None:
        if progress.phase is phase and (phase is not ConvertPhase.ENCODING or progress.done > progress.total // 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(dense.path, tmp_path / "m.ninfer", progress=interrupt, block_bytes=4096, shard_limit=500_000)
    assert list(tmp_path.iterdir()) == []


def test_progress_reaches_its_total(dense: Checkpoint, tmp_path: Path) -> None:
    seen: list[ConvertProgress] = []
    report = convert(dense.path, tmp_path / "m.ninfer", progress=seen.append, block_bytes=8192)
    encoding = [item for item in seen if item.phase is ConvertPhase.ENCODING]
    assert [item.done for item in encoding] == sorted(item.done for item in encoding)
    assert encoding[0].done == 0
    assert encoding[-1].done == report.source_bytes
    assert {item.total for item in encoding} == {report.source_bytes}
    assert seen[0].phase is ConvertPhase.CHECKING
    assert seen[-1].phase is ConvertPhase.PUBLISHING
