"""A training model of Qwen3.5 with the parameter names of `transformers`' Qwen3_5ForCausalLM plus `mtp.*`.

It differs from that class in speed only: documents are packed into rows and kept apart by their positions,
the gated delta rule runs over all chunks at once, and logits are computed where a target is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHUNK = 64
RESET = -30.0  # log-decay at a document's first token: e^-30 of the previous document's state survives


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The sizes of the demo; head sizes are the official models', so the same kernels serve it."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    layer_types: tuple[str, ...] = ("linear_attention",) * 3 + ("full_attention",)
    num_attention_heads: int = 2
    num_key_value_heads: int = 1
    head_dim: int = 256
    linear_num_heads: int = 2
    linear_head_dim: int = 128
    conv_width: int = 4
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e7
    rotary_dim: int = 64


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What the layers need to know of packed rows, from `positions` [B,T] inside the documents."""

    starts: Tensor
    conv_valid: tuple[Tensor, ...]
    attention_bias: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, config: DemoConfig) -> RowLayout:
        starts = positions == 0
        valid = tuple((positions >= s)[..., None].float() for s in range(1, config.conv_width))
        document = starts.cumsum(1)
        length = positions.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        visible = (document[:, :, None] == document[:, None, :]) & causal
        bias = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))[:, None]
        exponents = torch.arange(0, config.rotary_dim, 2) / config.rotary_dim
        angles = positions[..., None].float() * config.rope_theta**-exponents
        angles = torch.cat((angles, angles), -1)[:, None]
        return cls(starts, valid, bias, angles.cos(), angles.sin())


class OffsetRMSNorm(nn.Module):
    """RMSNorm with the weight stored as its offset from one."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), 1.0 + self.weight, self.eps)


class PlainRMSNorm(nn.Module):
    """The gated delta rule's output norm, whose weight multiplies as it is."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.5 * inputs**-0.5)
    return layer


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Chunked gated delta rule; q, k, v [B,N,T,D] (q, k normalised, q scaled), g and beta [B,N,T]."""
    batch, heads, length, size = q.shape
    chunks = length // CHUNK
    q, k, v = (x.reshape(batch, heads, chunks, CHUNK, size) for x in (q, k, v))
    beta = beta.reshape(batch, heads, chunks, CHUNK, 1)
    g = g.reshape(batch, heads, chunks, CHUNK).cumsum(-1)
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(1)
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(upper, float("-inf")).exp()
    from_start = g.exp()[..., None]
    k_beta = k * beta
    k_transposed = k.transpose(-1, -2)
    system = (k_beta @ k_transposed) * decay
    within = (q @ k_transposed) * decay
    right_sides = torch.cat((v * beta, k_beta * from_start), -1)
    values, keys = torch.linalg.solve_triangular(system, right_sides, upper=False, unitriangular=True).split(size, -1)
    q = q * from_start
    k_to_end = (k * (g[..., -1:] - g).exp()[..., None]).transpose(-1, -2)
    chunk_decay = g[..., -1].exp()[..., None, None]
    state = torch.zeros(batch, heads, size, size)
    corrected, read = [], []
    for i in range(chunks):
        new = values[:, :, i] - keys[:, :, i] @ state
        read.append(q[:, :, i] @ state)
        corrected.append(new)
        state = state * chunk_decay[:, :, i] + k_to_end[:, :, i] @ new
    out = torch.stack(read, 2) + within @ torch.stack(corrected, 2)
    return out.reshape(batch, heads, length, size)


class GatedDeltaNet(nn.Module):
    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.heads, self.size = config.linear_num_heads, config.linear_head_dim
        width = self.heads * self.size
        self.in_proj_qkv = linear(config.hidden_size, 3 * width)
        self.in_proj_z = linear(config.hidden_size, width)
        self.in_proj_b = linear(config.hidden_size, self.heads)
        self.in_proj_a = linear(config.hidden_size, self.heads)
        self.conv1d = nn.Conv1d(3 * width, 3 * width, config.conv_width, groups=3 * width, bias=False)
        nn.init.normal_(self.conv1d.weight, std=0.2)
        with torch.no_grad():
            self.conv1d.weight[:, 0, -1] += 1.0
        self.dt_bias = nn.Parameter(torch.ones(self.heads))
        self.A_log = nn.Parameter(initial_a_log(self.heads))
        self.norm = PlainRMSNorm(self.size, config.rms_norm_eps)
        self.out_proj = linear(width, config.hidden_size)
        nn.init.zeros_(self.out_proj.weight)

    def convolve(self, x: Tensor, layout: RowLayout) -> Tensor:
        """Causal depthwise convolution of [B,T,C] that does not reach into the previous document."""
        taps = self.conv1d.weight[:, 0].t()
        out = x * taps[-1]
        for shift, valid in enumerate(layout.conv_valid, start=1):
            moved = F.pad(x[:, :-shift], (0, 0, shift, 0)) * valid
            out = torch.addcmul(out, moved, taps[-1 - shift])
        return F.silu(out)

    def forward(self, x: Tensor, layout: RowLayout) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.convolve(self.in_proj_qkv(x), layout)
        q, k, v = qkv.view(batch, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x) + self.dt_bias)
        g = g.masked_fill(layout.starts[..., None], RESET)
        beta = self.in_proj_b(x).sigmoid()
        out = gated_delta_rule(q * self.size**-0.5, k, v, g.transpose(1, 2), beta.transpose(1, 2))
        out = self.norm(out.transpose(1, 2)).reshape(batch, length, -1)
        return self.out_proj(out * F.silu(self.in_proj_z(x)))


def initial_a_log(heads: int) -> Tensor:
    """Log of A for half-lives of 8 to 512 tokens, spread geometrically over the heads, at dt_bias 1."""
    half_lives = 8.0 * 64.0 ** (torch.arange(heads) / max(1, heads - 1))
    return (torch.log(torch.tensor(2.0)) / (half_lives * F.softplus(torch.tensor(1.0)))).log()


class GatedAttention(nn.Module):
    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = linear(config.hidden_size, 2 * self.heads * self.size)
        self.k_proj = linear(config.hidden_size, self.kv_heads * self.size)
        self.v_proj = linear(config.hidden_size, self.kv_heads * self.size)
        self.o_proj = linear(self.heads * self.size, config.hidden_size)
        nn.init.zeros_(self.o_proj.weight)
        self.q_norm = OffsetRMSNorm(self.size, config.rms_norm_eps)
        self.k_norm = OffsetRMSNorm(self.size, config.rms_norm_eps)

    def forward(self, x: Tensor, layout: RowLayout) -> Tensor:
        batch, length, _ = x.shape
        q, gate = self.q_proj(x).view(batch, length, self.heads, 2 * self.size).chunk(2, -1)
        q = rotate(self.q_norm(q).transpose(1, 2), layout)
        k = rotate(self.k_norm(self.k_proj(x).view(batch, length, self.kv_heads, self.size)).transpose(1, 2), layout)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        scores = (q * self.size**-0.5) @ k.transpose(-1, -2) + layout.attention_bias
        out = scores.softmax(-1) @ v
        out = out.transpose(1, 2).reshape(batch, length, -1) * gate.reshape(batch, length, -1).sigmoid()
        return self.o_proj(out)


def rotate(x: Tensor, layout: RowLayout) -> Tensor:
    """Apply split-half RoPE to the first rotary dimensions of [B,heads,T,D]; text has one position axis."""
    rotary = layout.cos.shape[-1]
    turned, kept = x[..., :rotary], x[..., rotary:]
    first, second = turned.chunk(2, -1)
    turned = turned * layout.cos + torch.cat((-second, first), -1) * layout.sin
    return torch.cat((turned, kept), -1)


class FeedForward(nn.Module):
    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.gate_proj = linear(config.hidden_size, config.intermediate_size)
        self.up_proj = linear(config.hidden_size, config.intermediate_size)
        self.down_proj = linear(config.intermediate_size, config.hidden_size)
        nn.init.zeros_(self.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: DemoConfig, layer_type: str) -> None:
        super().__init__()
        if layer_type == "full_attention":
            self.self_attn = GatedAttention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, layout: RowLayout) -> Tensor:
        mixer = self.self_attn if hasattr(self, "self_attn") else self.linear_attn
        x = x + mixer(self.input_layernorm(x), layout)
        return x + self.mlp(self.post_attention_layernorm(x))


class Text(nn.Module):
    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Block(config, layer_type) for layer_type in config.layer_types)
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, ids: Tensor, layout: RowLayout) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, layout)
        return self.norm(x)


class MultiTokenPredictor(nn.Module):
    """Qwen3.5's MTP head: predicts token t+2 from the final hidden at t and the embedding of token t+1."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.fc = linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([Block(config, "full_attention")])
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_embedding = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor, next_embedding: Tensor, layout: RowLayout) -> Tensor:
        joined = (self.pre_fc_norm_embedding(next_embedding), self.pre_fc_norm_hidden(hidden))
        return self.norm(self.layers[0](self.fc(torch.cat(joined, -1)), layout))


class DemoModel(nn.Module):
    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Text(config)
        self.mtp = MultiTokenPredictor(config)

    def losses(self, ids: Tensor, targets: Tensor, positions: Tensor, with_mtp: bool) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropies (main, MTP) over the flagged targets of packed rows [B,T]."""
        layout = RowLayout.of(positions, self.config)
        hidden = self.model(ids, layout)
        flags = targets.bool() & (positions >= 1)
        main = self.cross_entropy(hidden[:, :-1][flags[:, 1:]], ids[:, 1:][flags[:, 1:]])
        if not with_mtp:
            return main, torch.zeros(())
        following = self.model.embed_tokens(ids.roll(-1, 1))
        predicted = self.mtp(hidden, following, layout)
        flags = flags[:, 2:] & (positions[:, 2:] >= 2)
        return main, self.cross_entropy(predicted[:, :-2][flags], ids[:, 2:][flags])

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.model.embed_tokens.weight.t()

    def cross_entropy(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(hidden), labels)
