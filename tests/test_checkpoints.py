"""The tiny checkpoints are real: transformers loads them and computes finite, input-dependent logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from tests.checkpoints import VOCAB_ROWS, dense_checkpoint, moe_checkpoint, reference_model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("moe", [False, True])
def test_reference_model_computes(tmp_path: Path, moe: bool, tied: bool) -> None:
    checkpoint = moe_checkpoint(tmp_path, tied=tied) if moe else dense_checkpoint(tmp_path, tied=tied)
    tokens = torch.tensor([[5, 17, 300, 41, 2]])
    with torch.no_grad():
        logits = reference_model(checkpoint)(tokens).logits
    assert logits.shape == (1, 5, VOCAB_ROWS)
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.3
    assert len(set(logits.argmax(-1)[0].tolist())) > 1


def test_wrapped_checkpoint_has_all_components(tmp_path: Path) -> None:
    checkpoint = dense_checkpoint(tmp_path, mtp=True, vision=True, shards=3)
    names: set[str] = set()
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, "np") as tensors:
            names.update(tensors.keys())
    assert names == set(checkpoint.tensors)
    assert {"mtp.fc.weight", "model.visual.pos_embed.weight", "lm_head.weight"} <= names
    assert reference_model(checkpoint) is not None


def test_tokenizer_round_trip(tmp_path: Path) -> None:
    dense_checkpoint(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Hello, 北京 🙂 <|im_end|>\n def f(): 12"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.token_to_id("<|im_end|>") in ids
    assert tokenizer.get_vocab_size() < VOCAB_ROWS
