"""Builds the language model's execution parameters from a checked artifact, block by block."""

from __future__ import annotations

from collections.abc import Callable

from ninfer.kernels.moe import prepare_experts
from ninfer.models.qwen3_5.attention import Attention, AttentionWeights
from ninfer.models.qwen3_5.binding import Binder
from ninfer.models.qwen3_5.config import DenseConfig, LayerType, MoeConfig, TextConfig
from ninfer.models.qwen3_5.gdn import Gdn, GdnWeights
from ninfer.models.qwen3_5.mlp import Mlp
from ninfer.models.qwen3_5.moe import Moe, MoeWeights
from ninfer.models.qwen3_5.text import Block, TextModel


def build_text_model(config: TextConfig, binder: Binder, progress: Callable[[int, int], None]) -> TextModel:
    """Prepare all Text weights. `progress(done, total)` counts layers, embedding and head included."""
    total = config.num_layers + 2
    embedding = binder.table("text/token_embedding")
    progress(1, total)
    blocks = []
    for layer in range(config.num_layers):
        blocks.append(_block(config, binder, layer))
        progress(layer + 2, total)
    head = binder.linear("text/output_head")
    progress(total, total)
    return TextModel(embedding, tuple(blocks), binder.dense("text/final_norm"), head, config.rms_norm_eps)


def _block(config: TextConfig, binder: Binder, layer: int) -> Block:
    prefix, kind = f"text/layers/{layer}/", config.layer_types[layer]
    attention = kind is LayerType.ATTENTION
    return Block(
        input_norm=binder.dense(f"{prefix}input_norm"),
        mixer=_attention(config, binder, prefix) if attention else _gdn(config, binder, prefix),
        index=config.layer_types[:layer].count(kind),
        post_attention_norm=binder.dense(f"{prefix}post_attention_norm"),
        ffn=_ffn(config.ffn, binder, prefix),
    )


def _attention(config: TextConfig, binder: Binder, block: str) -> Attention:
    name = f"{block}attention/"
    weights = AttentionWeights(
        query=binder.linear(f"{name}query"),
        gate=binder.linear(f"{name}gate"),
        key=binder.linear(f"{name}key"),
        value=binder.linear(f"{name}value"),
        query_norm=binder.dense(f"{name}query_norm"),
        key_norm=binder.dense(f"{name}key_norm"),
        output=binder.linear(f"{name}output"),
    )
    assert config.attention is not None
    return Attention(weights, config.attention, config.rms_norm_eps)


def _gdn(config: TextConfig, binder: Binder, block: str) -> Gdn:
    name = f"{block}gdn/"
    weights = GdnWeights(
        qkv=binder.linear(f"{name}query", f"{name}key", f"{name}value"),
        z=binder.linear(f"{name}z"),
        a=binder.linear(f"{name}a_projection"),
        b=binder.linear(f"{name}b_projection"),
        convolution=binder.dense(f"{name}convolution"),
        a_log=binder.dense(f"{name}a_log"),
        dt_bias=binder.dense(f"{name}dt_bias"),
        norm=binder.dense(f"{name}norm"),
        output=binder.linear(f"{name}output"),
    )
    assert config.gdn is not None
    return Gdn(weights, config.gdn, config.rms_norm_eps)


def _ffn(config: DenseConfig | MoeConfig, binder: Binder, block: str) -> Mlp | Moe:
    if isinstance(config, DenseConfig):
        name = f"{block}mlp/"
        return Mlp(binder.linear(f"{name}gate", f"{name}up"), binder.linear(f"{name}down"))
    name = f"{block}moe/"
    experts = [f"{name}experts/{e}/" for e in range(config.experts)]
    weights = MoeWeights(
        router=binder.linear(f"{name}router"),
        shared_score=binder.linear(f"{name}shared_score"),
        experts=prepare_experts(
            [binder.linear(f"{e}gate", f"{e}up") for e in experts], [binder.linear(f"{e}down") for e in experts]
        ),
        shared_gate_up=binder.linear(f"{name}shared/gate", f"{name}shared/up"),
        shared_down=binder.linear(f"{name}shared/down"),
    )
    return Moe(weights, config)
