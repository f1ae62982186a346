"""A Qwen3.5 text checkpoint as a GGUF file in bf16, without a vocabulary: benchmarks feed random token ids."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.floats import bf16_to_fp32

ARCHITECTURE = "qwen35"
TOP_TENSORS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
LAYER_TENSORS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def import_gguf(sources: Path | None) -> Any:
    """The `gguf` package: the installed one, else the one in llama.cpp's `sources`.

    Raises:
        SystemExit: neither is there; the message says what to install.
    """
    if sources is not None:
        sys.path.append(str(sources / "gguf-py"))
    try:
        import gguf
    except ImportError as error:
        raise SystemExit(f"{error}: writing GGUF files needs `pip install gguf`") from error
    return gguf


def write_gguf(gguf: Any, checkpoint: Path, target: Path) -> None:
    """Write the checkpoint folder's `config.json` and `model.safetensors` as one GGUF file."""
    config = json.loads((checkpoint / "config.json").read_text())
    if config["linear_num_key_heads"] != config["linear_num_value_heads"]:
        raise ValueError("GGUF orders value heads differently when several share a key head; not needed here")
    writer = gguf.GGUFWriter(target, ARCHITECTURE)
    _write_metadata(gguf, writer, config)
    for name, bits in _checkpoint_tensors(checkpoint / "model.safetensors"):
        _add(gguf, writer, gguf_name(name), bits)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """The name that GGUF gives to a checkpoint's tensor."""
    if name in TOP_TENSORS:
        return TOP_TENSORS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_TENSORS[rest]}"


def _write_metadata(gguf: Any, writer: Any, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])


def _checkpoint_tensors(path: Path) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """Names and bf16 bit patterns of a safetensors file, mapped, not read."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, data[begin:end].view(np.uint16).reshape(entry["shape"])


def _add(gguf: Any, writer: Any, name: str, bits: NDArray[np.uint16]) -> None:
    """Matrices stay bf16; vectors and convolution taps become fp32, with the constants folded in that GGUF expects."""
    if bits.ndim == 2:
        kind = gguf.GGMLQuantizationType.BF16
        shape = gguf.quant_shape_to_byte_shape(bits.shape, kind)
        writer.add_tensor(name, bits.view(np.uint8), raw_shape=shape, raw_dtype=kind)
        return
    values = bf16_to_fp32(bits)
    if name.endswith("ssm_a"):
        values = -np.exp(values)
    elif name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        values = values + np.float32(1)
    writer.add_tensor(name, np.ascontiguousarray(values.squeeze()))
