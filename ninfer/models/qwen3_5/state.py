"""The model's continuation state: paged keys and values, and images of the recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec, KvPool, make_kv_pool, row_layout
from ninfer.kernels.placement import HOST, Placement
from ninfer.models.qwen3_5.config import LayerType, TextConfig


@dataclass(frozen=True, slots=True)
class GdnImages:
    """One GDN layer's images: `state` f32[S, Nv, dv, dk] and the last pre-convolution columns, f32[S, taps-1, C]."""

    state: torch.Tensor
    history: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelState:
    """All layers' state: `kv` per attention layer and `gdn` per GDN layer, both in layer order."""

    kv: tuple[KvPool, ...]
    gdn: tuple[GdnImages, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held by all pools and images."""
        pools = sum(pool.pages * pool.bytes_per_page for pool in self.kv)
        return pools + sum(image.state.nbytes + image.history.nbytes for image in self.gdn)


def allocate_state(
    config: TextConfig, codec: KvCodec, pages: int, images: int, placement: Placement = HOST
) -> ModelState:
    """Pools of `pages` pages of 64 tokens and `images` state images for every layer of `config`."""
    layers = config.layer_types
    return ModelState(
        kv=tuple(_pool(config, codec, pages, placement) for layer in layers if layer is LayerType.ATTENTION),
        gdn=tuple(_images(config, images, placement) for layer in layers if layer is LayerType.GDN),
    )


def image_bytes(config: TextConfig) -> int:
    """Bytes of one state image over all GDN layers; 1 for a model that has none, whose images are empty."""
    c = config.gdn
    if c is None:
        return 1
    elements = c.value_heads * c.value_dim * c.key_dim + (c.conv_taps - 1) * c.conv_width
    return max(1, 4 * elements * config.layer_types.count(LayerType.GDN))


def page_bytes(config: TextConfig, codec: KvCodec) -> int:
    """Bytes of one page of 64 tokens over all attention layers."""
    a, layers = config.attention, config.layer_types.count(LayerType.ATTENTION)
    if a is None:
        return 0
    row = sum(row_layout(side, a.head_dim).nbytes for side in (codec.key_format, codec.value_format))
    return layers * a.kv_heads * PAGE_TOKENS * row


def _pool(config: TextConfig, codec: KvCodec, pages: int, placement: Placement) -> KvPool:
    assert config.attention is not None
    return make_kv_pool(codec, pages, config.attention.kv_heads, config.attention.head_dim, placement)


def _images(config: TextConfig, images: int, placement: Placement) -> GdnImages:
    c = config.gdn
    assert c is not None
    return GdnImages(
        state=placement.zeros(images, c.value_heads, c.value_dim, c.key_dim),
        history=placement.zeros(images, c.conv_taps - 1, c.conv_width),
    )
