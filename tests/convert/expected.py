"""What a converted artifact must hold, computed from checkpoint tensors without the package's own code.

`logical_parameters` names and cuts tensors by hand; the quantisers are scalar-style float64 references that
return decoded values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_QMAX = {
    "q4_g64_fp16": (7, -8, 64),
    "q5_g64_fp16": (15, -16, 64),
    "q6_g64_fp16": (31, -32, 64),
    "q8_g32_fp16": (127, -127, 32),
}


def logical_parameters(tensors: Mapping[str, torch.Tensor], text: Mapping[str, Any], tied: bool) -> dict[str, F32]:
    """Persistent parameter name -> float32 value, of text, mtp and vision."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        found.update(_logical(name, tensor.float(), text))
    if tied:
        found["text/output_head"] = found["text/token_embedding"]
    return {name: tensor.contiguous().numpy() for name, tensor in found.items()}


def decoded_as(values: F32, fmt: str) -> F32:
    """`values` after a round trip through `fmt` with its reference encoder."""
    if fmt == "bf16":
        return torch.from_numpy(values).bfloat16().float().numpy()
    if fmt == "fp32":
        return values
    return _fp8(values) if fmt == "fp8_e4m3fn_row_bf16" else _grouped(values, *_QMAX[fmt])


def _grouped(values: F32, qmax: int, qmin: int, group: int) -> F32:
    """Group by group along K; a scale that rounds to zero becomes fp16's smallest."""
    parts = []
    for begin in range(0, values.shape[1], group):
        x = values[:, begin : begin + group]
        amax = np.abs(x).max(axis=1, keepdims=True)
        scale = (amax / np.float32(qmax)).astype(np.float16).astype(np.float32)
        scale = np.where((scale == 0) & (amax > 0), np.float32(2.0**-24), scale)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        parts.append(scale * np.clip(np.rint(x * inverse), qmin, qmax))
    return np.concatenate(parts, axis=1)


def _fp8(values: F32) -> F32:
    x = torch.from_numpy(values).bfloat16().float()
    scale = (x.abs().amax(dim=1, keepdim=True) / 448).bfloat16().float()
    inverse = torch.where(scale > 0, 1 / scale, 0)
    codes = (x * inverse).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.float() * scale).numpy()


def _logical(name: str, tensor: torch.Tensor, text: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    if name == "lm_head.weight":
        return {"text/output_head": tensor}
    if "visual." in name:
        return _vision(name.split("visual.", 1)[1], tensor)
    if name.startswith("mtp."):
        return _mtp(name.removeprefix("mtp."), tensor, text)
    plain = name.removeprefix("model.").removeprefix("language_model.")
    if plain.startswith("layers."):
        _, layer, rest = plain.split(".", 2)
        return {f"text/layers/{layer}/{key}": value for key, value in _block(rest, tensor, text).items()}
    return {{"embed_tokens.weight": "text/token_embedding", "norm.weight": "text/final_norm"}[plain]: tensor}


def _mtp(name: str, tensor: torch.Tensor, text: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    if name.startswith("layers.0."):
        block = _block(name.removeprefix("layers.0."), tensor, text)
        return {f"mtp/layers/0/{key}": value for key, value in block.items()}
    names = {
        "fc.weight": "input_projection",
        "pre_fc_norm_embedding.weight": "embedding_norm",
        "pre_fc_norm_hidden.weight": "hidden_norm",
        "norm.weight": "final_norm",
    }
    return {f"mtp/{names[name]}": tensor}


_BLOCK_NAMES = {
    "input_layernorm.weight": "input_norm",
    "post_attention_layernorm.weight": "post_attention_norm",
    "self_attn.k_proj.weight": "attention/key",
    "self_attn.v_proj.weight": "attention/value",
    "self_attn.o_proj.weight": "attention/output",
    "self_attn.q_norm.weight": "attention/query_norm",
    "self_attn.k_norm.weight": "attention/key_norm",
    "linear_attn.in_proj_z.weight": "gdn/z",
    "linear_attn.in_proj_a.weight": "gdn/a_projection",
    "linear_attn.in_proj_b.weight": "gdn/b_projection",
    "linear_attn.A_log": "gdn/a_log",
    "linear_attn.dt_bias": "gdn/dt_bias",
    "linear_attn.norm.weight": "gdn/norm",
    "linear_attn.out_proj.weight": "gdn/output",
    "mlp.gate_proj.weight": "mlp/gate",
    "mlp.up_proj.weight": "mlp/up",
    "mlp.down_proj.weight": "mlp/down",
    "mlp.gate.weight": "moe/router",
    "mlp.shared_expert_gate.weight": "moe/shared_score",
    "mlp.shared_expert.gate_proj.weight": "moe/shared/gate",
    "mlp.shared_expert.up_proj.weight": "moe/shared/up",
    "mlp.shared_expert.down_proj.weight": "moe/shared/down",
}


def _block(name: str, tensor: torch.Tensor, text: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    if name in _BLOCK_NAMES:
        return {_BLOCK_NAMES[name]: tensor}
    if name == "self_attn.q_proj.weight":
        heads = tensor.reshape(text["num_attention_heads"], 2, text["head_dim"], -1)
        columns = tensor.shape[1]
        return {
            "attention/query": heads[:, 0].reshape(-1, columns),
            "attention/gate": heads[:, 1].reshape(-1, columns),
        }
    if name == "linear_attn.in_proj_qkv.weight":
        keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        query, key, value = tensor.split([keys, keys, tensor.shape[0] - 2 * keys])
        return {"gdn/query": query, "gdn/key": key, "gdn/value": value}
    if name == "linear_attn.conv1d.weight":
        return {"gdn/convolution": tensor[:, 0].T}
    if name == "mlp.experts.gate_up_proj":
        halves = (
            (e, part, half) for e, both in enumerate(tensor) for part, half in zip("gu", both.chunk(2), strict=True)
        )
        return {f"moe/experts/{e}/{'gate' if part == 'g' else 'up'}": half for e, part, half in halves}
    assert name == "mlp.experts.down_proj"
    return {f"moe/experts/{e}/down": down for e, down in enumerate(tensor)}


def _vision(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    if match is None:
        names = {
            "pos_embed.weight": "position_embedding",
            "patch_embed.proj.bias": "patch_embedding_bias",
            "merger.norm.weight": "merger/norm_weight",
            "merger.norm.bias": "merger/norm_bias",
            "merger.linear_fc1.weight": "merger/fc1",
            "merger.linear_fc1.bias": "merger/fc1_bias",
            "merger.linear_fc2.weight": "merger/fc2",
            "merger.linear_fc2.bias": "merger/fc2_bias",
        }
        if name == "patch_embed.proj.weight":
            return {"vision/patch_embedding": tensor.flatten(1)}
        return {f"vision/{names[name]}": tensor}
    layer, rest = f"vision/layers/{match[1]}/", match[2]
    if rest.startswith("attn.qkv."):
        suffix = "_bias" if rest.endswith("bias") else ""
        parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
        return {f"{layer}attention/{part}{suffix}": value for part, value in parts}
    module, kind = rest.rsplit(".", 1)
    if module.startswith("norm"):
        return {f"{layer}{module}_{kind}": tensor}
    target = {"attn.proj": "attention/output", "mlp.linear_fc1": "mlp/fc1", "mlp.linear_fc2": "mlp/fc2"}[module]
    return {f"{layer}{target}{'_bias' if kind == 'bias' else ''}": tensor}
