"""How much scratch memory a unit takes: what the blocks take from their Arena, counted without running them."""

from __future__ import annotations

from ninfer.kernels.arena import ALIGN
from ninfer.models.qwen3_5.config import DenseConfig, LayerType, TextConfig


def workspace_bytes(config: TextConfig, tokens: int, rows: int) -> int:
    """The Arena bytes of a unit over `tokens` tokens that ends in the logits of `rows` rows."""
    hidden, row = _taken(tokens, config.hidden_size), _taken(rows, config.hidden_size)
    mixer = max(_mixer(config, kind, tokens) for kind in set(config.layer_types))
    block = 2 * hidden + max(mixer, _ffn(config, tokens))
    return row + max(2 * hidden + block, row + _taken(rows, config.vocab_size))


def op_workspace_bytes(config: TextConfig, tokens: int) -> int:
    """What CUDA routes keep for themselves and what grows with the tokens of a pass, at most.

    The widest input as it is multiplied (2 bytes) and as it is rotated (4), and what lies between the two products of a
    feed-forward where formats are mixed, or of the experts: inputs, products and results of every chosen one.
    """
    c, a, g = config.ffn, config.attention, config.gdn
    mixed = max(0 if a is None else a.heads * a.head_dim, 0 if g is None else g.value_heads * g.value_dim)
    if isinstance(c, DenseConfig):
        return 6 * tokens * max(config.hidden_size, mixed, c.intermediate_size) + 8 * tokens * c.intermediate_size
    slots = tokens * c.experts_per_token
    experts = slots * (4 * (c.expert_size + config.hidden_size) + 6 * c.expert_size)
    return 6 * tokens * max(config.hidden_size, mixed, c.shared_size) + 8 * tokens * c.shared_size + experts


def _mixer(config: TextConfig, kind: LayerType, tokens: int) -> int:
    if kind is LayerType.ATTENTION:
        a = config.attention
        assert a is not None
        return 3 * _taken(tokens, a.heads * a.head_dim) + 2 * _taken(tokens, a.kv_heads * a.head_dim)
    c = config.gdn
    assert c is not None
    wide = 2 * _taken(tokens, c.conv_width) + 3 * _taken(tokens, c.value_heads * c.value_dim)
    return wide + 4 * _taken(tokens, c.value_heads)


def _ffn(config: TextConfig, tokens: int) -> int:
    c = config.ffn
    if isinstance(c, DenseConfig):
        return _taken(tokens, c.intermediate_size)
    routing = _taken(tokens, c.experts) + _taken(tokens, 1)
    chosen = _taken(tokens, 2 * c.experts_per_token) + _taken(tokens, c.experts_per_token)
    return routing + chosen + 2 * _taken(tokens, config.hidden_size) + _taken(tokens, c.shared_size)


def _taken(tokens: int, width: int) -> int:
    """What an Arena hands out for f32[tokens, width]."""
    return -(-4 * tokens * width // ALIGN) * ALIGN
