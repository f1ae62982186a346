"""Checks that the tie flag tells the truth about the head that a checkpoint ships."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.floats import bf16_to_fp32
from ninfer.convert.qwen3_5.names import BASE, SourceSet
from ninfer.convert.sources.rows import TensorRows
from ninfer.convert.sources.tensor_file import TensorReader
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import RowBlocks, text_inventory

_HEAD = "lm_head.weight"
_BLOCK_BYTES = 8 << 20


def check_tied_head(sources: SourceSet, model: ModelConfig, reader: TensorReader) -> None:
    """Compare a redundant `lm_head.weight` with the embedding.

    Raises:
        ConfigError: tie_word_embeddings is true, yet the checkpoint's head differs from its embedding.
    """
    base, embedding_spec = sources.checkpoints[BASE], text_inventory(model)[0].source
    assert embedding_spec is not None
    head_entry = base.tensors.get(_HEAD)
    embedding_entry = base.tensors.get(sources.tensor_name(base, embedding_spec))
    if not model.text.tie_word_embeddings or head_entry is None or embedding_entry is None:
        return
    rows = model.text.vocab_size
    if head_entry.shape == embedding_entry.shape == embedding_spec.shape:
        head = TensorRows(head_entry, rows, RowBlocks(0, rows))
        embedding = TensorRows(embedding_entry, rows, RowBlocks(0, rows))
        if _equal(head, embedding, reader):
            return
    raise ConfigError(
        f"{base.path}: tie_word_embeddings is true, but {_HEAD} differs from {embedding_entry.name};"
        " set tie_word_embeddings to false in config.json, or remove the tensor"
    )


def _equal(left: TensorRows, right: TensorRows, reader: TensorReader) -> bool:
    step = max(1, _BLOCK_BYTES * left.rows // left.source_bytes)
    for begin in range(0, left.rows, step):
        end = min(left.rows, begin + step)
        if not np.array_equal(_values(left, reader, begin, end), _values(right, reader, begin, end)):
            return False
    return True


def _values(rows: TensorRows, reader: TensorReader, begin: int, end: int) -> NDArray[np.float32]:
    values = rows.read(reader, begin, end)
    return bf16_to_fp32(values) if values.dtype == np.uint16 else values.astype(np.float32)
