"""What Engine options are refused, in words that name the option."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ninfer.errors import ConfigError
from ninfer.runtime.options import settle
from ninfer.types import EngineOptions, KvDtype


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_dtype": "int8"}, r"kv_dtype must be one of KvDtype\.FP32, .*, got 'int8'"),
        ({"max_context": 1}, "--max-context must be from 2 to 4096"),
        ({"max_concurrency": 9}, "--max-concurrency must be from 1 to 8, got 9"),
        ({"prefill_chunk": 100}, "--prefill-chunk must be a positive multiple of 128, got 100"),
        ({"kv_capacity": 1}, "--kv-capacity must be from 64 to 128 pages"),
        ({"device": "gpu"}, "--device must be auto, cpu, cuda or cuda:INDEX, got 'gpu'"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settle(replace(EngineOptions(), **changes), model_context=4096, image_bytes=1 << 20)


def test_every_kv_dtype_is_accepted() -> None:
    for kind in KvDtype:
        assert settle(EngineOptions(kv_dtype=kind), 4096, 1 << 20).kv_dtype is kind
