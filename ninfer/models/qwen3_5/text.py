"""The language model:  h = embed(t);  per block  h += mixer(norm h);  h += ffn(norm h);  logits = head(norm h)"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ninfer.kernels import embedding, linear, rmsnorm
from ninfer.kernels.arena import Arena
from ninfer.kernels.weights import LinearWeight, TableWeight
from ninfer.models.qwen3_5.attention import Attention
from ninfer.models.qwen3_5.batch import Batch
from ninfer.models.qwen3_5.gdn import Gdn
from ninfer.models.qwen3_5.mlp import Mlp
from ninfer.models.qwen3_5.moe import Moe
from ninfer.models.qwen3_5.state import ModelState


@dataclass(frozen=True, slots=True)
class Block:
    """One layer: its mixer finds its state at `index` among the layers of its own kind."""

    input_norm: torch.Tensor
    mixer: Attention | Gdn
    index: int
    post_attention_norm: torch.Tensor
    ffn: Mlp | Moe

    def forward(self, h: torch.Tensor, eps: float, batch: Batch, state: ModelState, arena: Arena) -> None:
        """h f32[T, H] += mixer(norm h), then += ffn(norm h), in place."""
        with arena.scope():
            mixed = arena.take(*h.shape)
            self.mix(h, eps, batch, state, arena, mixed)
            self.feed(mixed, eps, arena, h)

    def mix(
        self, h: torch.Tensor, eps: float, batch: Batch, state: ModelState, arena: Arena, out: torch.Tensor
    ) -> None:
        """out f32[T, H] = h + mixer(norm h); writes keys, values and recurrent state of the batch."""
        with arena.scope():
            normed = arena.take(*h.shape)
            rmsnorm(h, self.input_norm, eps, True, normed)
            if isinstance(self.mixer, Attention):
                self.mixer.forward(normed, h, batch, state.kv[self.index], arena, out)
            else:
                self.mixer.forward(normed, h, batch, state.gdn[self.index], arena, out)

    def feed(self, mixed: torch.Tensor, eps: float, arena: Arena, out: torch.Tensor) -> None:
        """out f32[R, H] = mixed + ffn(norm mixed), row by row."""
        with arena.scope():
            normed = arena.take(*mixed.shape)
            rmsnorm(mixed, self.post_attention_norm, eps, True, normed)
            self.ffn.forward(normed, mixed, arena, out)


@dataclass(frozen=True, slots=True)
class TextModel:
    """All weights of the language model, ready to run. Holds no request state."""

    embedding: TableWeight
    blocks: tuple[Block, ...]
    final_norm: torch.Tensor
    head: LinearWeight
    eps: float

    @property
    def hidden_size(self) -> int:
        return self.embedding.columns

    @property
    def vocab_size(self) -> int:
        return self.head.rows

    def forward(self, batch: Batch, state: ModelState, arena: Arena, out: torch.Tensor) -> None:
        """out f32[T, H] = last block's output; keys, values and recurrent state of the batch are written."""
        embedding(batch.token_ids, self.embedding, out)
        for block in self.blocks:
            block.forward(out, self.eps, batch, state, arena)

    def forward_rows(
        self, batch: Batch, state: ModelState, arena: Arena, wanted: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Like `forward`, but out f32[R, H] has only the tokens int64[R] `wanted`, with the same bits.

        No later token needs what the last block's feed-forward makes of the others, so it is not computed.
        """
        with arena.scope():
            h, mixed = (arena.take(batch.segments.total, self.hidden_size) for _ in range(2))
            embedding(batch.token_ids, self.embedding, h)
            for block in self.blocks[:-1]:
                block.forward(h, self.eps, batch, state, arena)
            last = self.blocks[-1]
            last.mix(h, self.eps, batch, state, arena, mixed)
            if len(wanted):
                rows = torch.index_select(mixed, 0, wanted, out=arena.take(*out.shape))
                last.feed(rows, self.eps, arena, out)

    def logits(self, hidden: torch.Tensor, arena: Arena, out: torch.Tensor) -> None:
        """out f32[R, V] from rows f32[R, H] of the last block's output."""
        with arena.scope():
            normed = arena.take(*hidden.shape)
            rmsnorm(hidden, self.final_norm, self.eps, True, normed)
            linear(normed, self.head, out)
