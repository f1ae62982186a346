"""Tiny random Hugging Face checkpoints with their tokenizer files, for tests of every room.

The text tensors carry the names and shapes of transformers' own `Qwen3_5[Moe]ForCausalLM`; MTP and Vision
tensors carry the names of the official checkpoints. Weights are scaled so that activations stay near one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

VOCAB_ROWS = 512
TEXT: dict[str, Any] = {
    "hidden_size": 128,
    "vocab_size": VOCAB_ROWS,
    "num_hidden_layers": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
DENSE: dict[str, Any] = {**TEXT, "intermediate_size": 256}
MOE: dict[str, Any] = {
    **TEXT,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 64,
    "in_channels": 3,
    "intermediate_size": 96,
    "num_heads": 4,
    "num_position_embeddings": 16,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "deepstack_visual_indexes": [],
}
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}{%- for part in content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\\n# Tools\\n' -}}
{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- else -%}
{{- '<think>\\n' -}}
{%- endif -%}
{%- endif -%}
"""
_CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "user assistant system: what is the weather in the city today?",
    "def add(a, b):\n    return a + b\n",
    "Der schnelle braune Fuchs, être ou ne pas être, 北京的天气怎么样？ 🙂",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint directory, its config.json, and every tensor written (as written)."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def dense_checkpoint(
    path: Path,
    *,
    tied: bool = False,
    seed: int = 0,
    shards: int = 1,
    text_config: Mapping[str, Any] | None = None,
    mtp: bool = False,
    vision: bool = False,
) -> Checkpoint:
    """Write a dense checkpoint to `path`.

    Args:
        tied: tie head and embedding (no `lm_head.weight` is written).
        shards: 1 writes `model.safetensors`; more write shards and an index.
        text_config: members that replace those of `DENSE`.
        mtp: add an MTP block. vision: add a vision tower; then the config has a `text_config` level.
    """
    return _checkpoint(path, {**DENSE, **(text_config or {})}, tied, seed, shards, mtp, vision)


def moe_checkpoint(
    path: Path,
    *,
    tied: bool = False,
    seed: int = 0,
    shards: int = 1,
    text_config: Mapping[str, Any] | None = None,
    mtp: bool = False,
    vision: bool = False,
) -> Checkpoint:
    """Write a mixture-of-experts checkpoint to `path`; arguments as in `dense_checkpoint`."""
    return _checkpoint(path, {**MOE, **(text_config or {})}, tied, seed, shards, mtp, vision)


def reference_model(checkpoint: Checkpoint) -> torch.nn.Module:
    """transformers' language model of a checkpoint, in fp32 evaluation mode."""
    text = checkpoint.config.get("text_config", checkpoint.config)
    model = _build(text, tied=checkpoint.config["tie_word_embeddings"])
    prefix = "model.language_model." if "text_config" in checkpoint.config else "model."
    state = {
        name.replace(prefix, "model.", 1): tensor.float()
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(prefix) or name == "lm_head.weight"
    }
    model.load_state_dict(state, strict=not checkpoint.config["tie_word_embeddings"])
    model.tie_weights()
    return model.float().eval()


def write_tokenizer_files(path: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    tokenizer = _tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in (*SPECIAL_TOKENS, *ADDED_TOKENS)}
    added = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL_TOKENS,
        }
        for token, index in ids.items()
    }
    _write_json(
        path / "tokenizer_config.json",
        {
            "added_tokens_decoder": added,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 32768,
            "tokenizer_class": "Qwen2Tokenizer",
        },
    )
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    stops = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    _write_json(
        path / "generation_config.json",
        {
            "do_sample": True,
            "eos_token_id": stops,
            "pad_token_id": stops[1],
            "temperature": 1.0,
            "top_k": 20,
            "top_p": 0.95,
        },
    )


def write_vision_files(path: Path) -> None:
    """Write the two preprocessor configs that a vision component needs."""
    common = {
        "patch_size": 4,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    size = {"shortest_edge": 64, "longest_edge": 4096}
    _write_json(
        path / "preprocessor_config.json",
        {**common, "size": size, "image_processor_type": "Qwen2VLImageProcessorFast"},
    )
    _write_json(
        path / "video_preprocessor_config.json",
        {**common, "size": size, "video_processor_type": "Qwen3VLVideoProcessor"},
    )


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], shards: int = 1) -> None:
    """Write one `model.safetensors`, or `shards` files and their index."""
    if shards == 1:
        save_file(dict(tensors), path / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(path / "model.safetensors.index.json", index)


def _checkpoint(
    path: Path, text: dict[str, Any], tied: bool, seed: int, shards: int, mtp: bool, vision: bool
) -> Checkpoint:
    path.mkdir(parents=True, exist_ok=True)
    moe = "num_experts" in text
    wrapped = mtp or vision
    prefix = "model.language_model." if wrapped else "model."
    random = _Random(seed)
    model = _build(text, tied, device="meta")
    tensors = {
        name.replace("model.", prefix, 1): random.tensor(name, tuple(tensor.shape))
        for name, tensor in model.named_parameters()
    }
    for name, shape in (*(_mtp_shapes(text) if mtp else ()), *(_vision_shapes(text) if vision else ())):
        tensors[name] = random.tensor(name, shape)
    config = _config(text, tied, moe, wrapped, mtp, vision)
    _write_json(path / "config.json", config)
    write_tensors(path, tensors, shards)
    write_tokenizer_files(path)
    if vision:
        write_vision_files(path)
    return Checkpoint(path, config, tensors)


class _Random:
    """Weights whose scale keeps activations near one, by the role that the name tells."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        normal = torch.randn(shape, generator=self._generator)
        if name.endswith("A_log"):
            return (1.0 + 15.0 * torch.rand(shape, generator=self._generator)).log()
        if name.endswith("dt_bias"):
            return (normal - 2.0).bfloat16()
        if "linear_attn.norm" in name or (".visual." in name and "norm" in name and name.endswith("weight")):
            return (1.0 + 0.1 * normal).bfloat16()
        if len(shape) == 1:
            return (0.1 * normal).bfloat16()
        if "embed_tokens" in name:
            return normal.bfloat16()
        fan_in = shape[-1] if len(shape) == 3 and "experts" in name else normal[0].numel()
        return (normal / fan_in**0.5).bfloat16()


def _build(text: Mapping[str, Any], tied: bool, device: str = "cpu") -> Qwen3_5ForCausalLM | Qwen3_5MoeForCausalLM:
    drop = ("model_type", "tie_word_embeddings", "mtp_num_hidden_layers")
    members = copy.deepcopy({name: value for name, value in text.items() if name not in drop})
    with torch.device(device):
        if "num_experts" in text:
            return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**members, tie_word_embeddings=tied))
        return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**members, tie_word_embeddings=tied))


def _config(text: dict[str, Any], tied: bool, moe: bool, wrapped: bool, mtp: bool, vision: bool) -> dict[str, Any]:
    family = "qwen3_5_moe" if moe else "qwen3_5"
    name = "Qwen3_5Moe" if moe else "Qwen3_5"
    inner = {**text, "model_type": f"{family}_text", "tie_word_embeddings": tied}
    if not wrapped:
        return {"architectures": [f"{name}ForCausalLM"], "dtype": "bfloat16", **inner}
    config: dict[str, Any] = {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": family,
        "text_config": {**inner, "mtp_num_hidden_layers": int(mtp)},
        "tie_word_embeddings": tied,
    }
    if vision:
        config["vision_config"] = {**VISION, "model_type": family, "out_hidden_size": text["hidden_size"]}
    return config


def _mtp_shapes(text: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = text["hidden_size"]
    attention = {**text, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    yield "mtp.fc.weight", (hidden, 2 * hidden)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"mtp.{norm}.weight", (hidden,)
    block = _build(attention, tied=True, device="meta").model.layers[0]
    for name, tensor in block.named_parameters():
        yield f"mtp.layers.0.{name}", tuple(tensor.shape)


def _vision_shapes(text: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    h, size, patch = VISION["hidden_size"], VISION["intermediate_size"], VISION["patch_size"]
    merged = h * VISION["spatial_merge_size"] ** 2
    affine: dict[str, tuple[int, ...]] = {
        "patch_embed.proj": (h, 3, VISION["temporal_patch_size"], patch, patch),
        "merger.norm": (h,),
        "merger.linear_fc1": (merged, merged),
        "merger.linear_fc2": (text["hidden_size"], merged),
    }
    for index in range(VISION["depth"]):
        block = f"blocks.{index}."
        affine |= {f"{block}norm1": (h,), f"{block}norm2": (h,), f"{block}attn.qkv": (3 * h, h)}
        affine |= {
            f"{block}attn.proj": (h, h),
            f"{block}mlp.linear_fc1": (size, h),
            f"{block}mlp.linear_fc2": (h, size),
        }
    yield "model.visual.pos_embed.weight", (VISION["num_position_embeddings"], h)
    for name, shape in affine.items():
        yield f"model.visual.{name}.weight", shape
        yield f"model.visual.{name}.bias", shape[:1]


def _tokenizer() -> Tokenizer:
    """A byte-level BPE with Qwen's kind of splitting, small enough to leave unused embedding rows."""
    tokenizer = Tokenizer(models.BPE())
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    pattern = words + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED_TOKENS])
    return tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
