"""Quantised twins of a tiny checkpoint, in the conventions of compressed-tensors and ModelOpt.

Codes are random but legal; `decoded` holds each quantised weight's value, computed here in float64.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from tests.checkpoints import Checkpoint, write_tokenizer_files

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NVFP4_GROUP = {
    "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
}
FP8_GROUP = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None, "symmetric": True}}


class Convention(enum.Enum):
    """How NVFP4's per-matrix scale is stored."""

    COMPRESSED_TENSORS = "divisor"
    MODELOPT = "multiplier"


@dataclass(frozen=True)
class EncodedCheckpoint:
    path: Path
    decoded: dict[str, NDArray[np.float64]]


def encoded_twin(
    path: Path,
    checkpoint: Checkpoint,
    *,
    nvfp4: str = "",
    fp8: str = "",
    convention: Convention = Convention.COMPRESSED_TENSORS,
    input_scales: bool = True,
    divisor: float = 2688.0,
    seed: int = 7,
) -> EncodedCheckpoint:
    """Write a copy of `checkpoint` whose weights that match the regular expressions are codes.

    Args:
        nvfp4, fp8: expressions over module names; a module that matches neither stays bf16.
        divisor: the NVFP4 divisor of every matrix. input_scales: also state activation divisors (64).
    """
    path.mkdir()
    random = np.random.default_rng(seed)
    tensors: dict[str, torch.Tensor] = {}
    decoded: dict[str, NDArray[np.float64]] = {}
    for name, tensor in checkpoint.tensors.items():
        module = name.removesuffix(".weight")
        if nvfp4 and re.fullmatch(nvfp4, module):
            parts, decoded[name] = nvfp4_weight(random, tuple(tensor.shape), divisor, convention, input_scales)
        elif fp8 and re.fullmatch(fp8, module):
            parts, decoded[name] = fp8_weight(random, tuple(tensor.shape))
        else:
            tensors[name] = tensor
            continue
        tensors |= {f"{module}.{suffix}": part for suffix, part in parts.items()}
    groups = {}
    if nvfp4:
        groups["group_0"] = {**NVFP4_GROUP, "targets": [f"re:{nvfp4}$"]}
    if fp8:
        groups["group_1"] = {**FP8_GROUP, "targets": [f"re:{fp8}$"]}
    config = {
        **checkpoint.config,
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups},
    }
    if convention is Convention.MODELOPT:
        excluded = [name.removesuffix(".weight") for name in checkpoint.tensors if name not in decoded]
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": excluded}
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    write_tokenizer_files(path)
    return EncodedCheckpoint(path, decoded)


def nvfp4_weight(
    random: np.random.Generator, shape: tuple[int, ...], divisor: float, convention: Convention, input_scales: bool
) -> tuple[dict[str, torch.Tensor], NDArray[np.float64]]:
    rows, columns = shape
    codes = random.integers(0, 16, shape, dtype=np.uint8)
    scale_codes = random.integers(0x30, 0x7F, (rows, columns // 16), dtype=np.uint8)
    scales = torch.from_numpy(scale_codes).view(torch.float8_e4m3fn)
    packed = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4)
    value = E2M1[codes] * np.repeat(scales.double().numpy(), 16, axis=1) / divisor
    if convention is Convention.COMPRESSED_TENSORS:
        parts = {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": torch.tensor([divisor])}
        return (parts | {"input_global_scale": torch.tensor([64.0])} if input_scales else parts), value
    parts = {"weight": packed, "weight_scale": scales, "weight_scale_2": torch.tensor(1 / divisor)}
    return (parts | {"input_scale": torch.tensor(1 / 64)} if input_scales else parts), value


def fp8_weight(
    random: np.random.Generator, shape: tuple[int, ...]
) -> tuple[dict[str, torch.Tensor], NDArray[np.float64]]:
    codes = random.integers(0, 256, shape, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = torch.from_numpy(random.uniform(0.01, 0.1, (shape[0], 1)).astype(np.float32)).bfloat16()
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return {"weight": weight, "weight_scale": scales}, (weight.double() * scales.double()).numpy()
