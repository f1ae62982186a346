"""transformers' model with the weights that an artifact represents: the oracle for quantised recipes.

The mapping from parameter names back to tensors is written out here on its own, from the published names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ninfer.artifact.reader import ArtifactReader
from tests.checkpoints import Checkpoint, reference_model


class _Parameters:
    def __init__(self, reader: ArtifactReader) -> None:
        self._reader = reader

    def __call__(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        return torch.from_numpy(np.array(self._reader.decode_parameter(name, shape), dtype=np.float32))


def decoded_model(checkpoint: Checkpoint, artifact: Path) -> torch.nn.Module:
    """The reference model of `checkpoint`, its weights replaced by what `artifact` decodes to."""
    model = reference_model(checkpoint)
    config = checkpoint.config.get("text_config", checkpoint.config)
    with ArtifactReader.open(artifact) as reader:
        state = _state(_Parameters(reader), config, checkpoint.config["tie_word_embeddings"])
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert not [name for name in missing if name != "lm_head.weight"], missing
    return model.float().eval()


def _state(get: _Parameters, config: dict[str, Any], tied: bool) -> dict[str, torch.Tensor]:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    state = {
        "model.embed_tokens.weight": get("text/token_embedding", (vocab, hidden)),
        "model.norm.weight": get("text/final_norm"),
    }
    if not tied:
        state["lm_head.weight"] = get("text/output_head", (vocab, hidden))
    for layer, kind in enumerate(config["layer_types"]):
        state |= _block(get, config, f"text/layers/{layer}/", f"model.layers.{layer}.", kind)
    return state


def _block(get: _Parameters, c: dict[str, Any], ours: str, theirs: str, kind: str) -> dict[str, torch.Tensor]:
    state = {
        f"{theirs}input_layernorm.weight": get(f"{ours}input_norm"),
        f"{theirs}post_attention_layernorm.weight": get(f"{ours}post_attention_norm"),
    }
    mixer = _attention if kind == "full_attention" else _gdn
    state |= mixer(get, c, ours, theirs)
    return state | (_moe if "num_experts" in c else _mlp)(get, c, ours, theirs)


def _attention(get: _Parameters, c: dict[str, Any], ours: str, theirs: str) -> dict[str, torch.Tensor]:
    hidden, dim, heads, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    query = get(f"{ours}attention/query", (heads, dim, hidden))
    gate = get(f"{ours}attention/gate", (heads, dim, hidden))
    prefix = f"{theirs}self_attn."
    return {
        f"{prefix}q_proj.weight": torch.cat((query, gate), 1).reshape(2 * heads * dim, hidden),
        f"{prefix}k_proj.weight": get(f"{ours}attention/key", (kv * dim, hidden)),
        f"{prefix}v_proj.weight": get(f"{ours}attention/value", (kv * dim, hidden)),
        f"{prefix}o_proj.weight": get(f"{ours}attention/output", (hidden, heads * dim)),
        f"{prefix}q_norm.weight": get(f"{ours}attention/query_norm"),
        f"{prefix}k_norm.weight": get(f"{ours}attention/key_norm"),
    }


def _gdn(get: _Parameters, c: dict[str, Any], ours: str, theirs: str) -> dict[str, torch.Tensor]:
    hidden, heads = c["hidden_size"], c["linear_num_value_heads"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = heads * c["linear_value_head_dim"]
    name, prefix = f"{ours}gdn/", f"{theirs}linear_attn."
    parts = [
        get(f"{name}{part}", (rows, hidden))
        for part, rows in zip(("query", "key", "value"), (keys, keys, values), strict=True)
    ]
    return {
        f"{prefix}in_proj_qkv.weight": torch.cat(parts),
        f"{prefix}in_proj_z.weight": get(f"{name}z", (values, hidden)),
        f"{prefix}in_proj_a.weight": get(f"{name}a_projection", (heads, hidden)),
        f"{prefix}in_proj_b.weight": get(f"{name}b_projection", (heads, hidden)),
        f"{prefix}A_log": get(f"{name}a_log"),
        f"{prefix}dt_bias": get(f"{name}dt_bias"),
        f"{prefix}conv1d.weight": get(f"{name}convolution").t().contiguous()[:, None],
        f"{prefix}norm.weight": get(f"{name}norm"),
        f"{prefix}out_proj.weight": get(f"{name}output", (hidden, values)),
    }


def _mlp(get: _Parameters, c: dict[str, Any], ours: str, theirs: str) -> dict[str, torch.Tensor]:
    return _ffn(get, f"{ours}mlp/", f"{theirs}mlp.", c["hidden_size"], c["intermediate_size"])


def _ffn(get: _Parameters, ours: str, theirs: str, hidden: int, size: int) -> dict[str, torch.Tensor]:
    return {
        f"{theirs}gate_proj.weight": get(f"{ours}gate", (size, hidden)),
        f"{theirs}up_proj.weight": get(f"{ours}up", (size, hidden)),
        f"{theirs}down_proj.weight": get(f"{ours}down", (hidden, size)),
    }


def _moe(get: _Parameters, c: dict[str, Any], ours: str, theirs: str) -> dict[str, torch.Tensor]:
    hidden, size, shared = c["hidden_size"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    experts = [f"{ours}moe/experts/{e}/" for e in range(c["num_experts"])]
    up = [torch.cat([get(f"{e}{part}", (size, hidden)) for part in ("gate", "up")]) for e in experts]
    return {
        f"{theirs}mlp.gate.weight": get(f"{ours}moe/router", (c["num_experts"], hidden)),
        f"{theirs}mlp.shared_expert_gate.weight": get(f"{ours}moe/shared_score", (1, hidden)),
        f"{theirs}mlp.experts.gate_up_proj": torch.stack(up),
        f"{theirs}mlp.experts.down_proj": torch.stack([get(f"{e}down", (hidden, size)) for e in experts]),
        **_ffn(get, f"{ours}moe/shared/", f"{theirs}mlp.shared_expert.", hidden, shared),
    }
