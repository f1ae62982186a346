"""Writes the Hugging Face files: config, generation config, tokenizer and bf16 weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from model import DemoConfig
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

FP32_SUFFIXES = ("linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm.weight")


def hf_config(config: DemoConfig, tokenizer: Tokenizer) -> dict[str, object]:
    """Return config.json: the fields of an official text config."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "full_attention_interval": 4,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "layer_types": list(config.layer_types),
        "linear_conv_kernel_dim": config.conv_width,
        "linear_key_head_dim": config.linear_head_dim,
        "linear_num_key_heads": config.linear_num_heads,
        "linear_num_value_heads": config.linear_num_heads,
        "linear_value_head_dim": config.linear_head_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 4096,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": len(config.layer_types),
        "num_key_value_heads": config.num_key_value_heads,
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": config.rotary_dim / config.head_dim,
            "rope_theta": int(config.rope_theta),
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, object]:
    end, text_end = (tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>"))
    return {
        "bos_token_id": text_end,
        "do_sample": True,
        "eos_token_id": [end, text_end],
        "pad_token_id": text_end,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_static_files(
    folder: Path, tokenizer: Tokenizer, tokenizer_config: dict[str, object], config: DemoConfig
) -> None:
    """Write everything but the weights (the chat template is a source file of the recipe)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", hf_config(config, tokenizer))
    write_json(folder / "generation_config.json", generation_config(tokenizer))
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"))


def export_checkpoint(state: Path, folder: Path) -> None:
    """Write model.safetensors from a training state; bf16 but for the parameters Qwen keeps in fp32."""
    weights: dict[str, Tensor] = torch.load(state)["model"]
    tensors = {
        name: tensor.contiguous() if name.endswith(FP32_SUFFIXES) else tensor.to(torch.bfloat16).contiguous()
        for name, tensor in weights.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write model.safetensors from a training state.")
    parser.add_argument("state", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    export_checkpoint(arguments.state, arguments.output)
