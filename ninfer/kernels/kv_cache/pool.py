"""KvPool: the physical pages of one attention layer's keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ninfer.kernels.kv_cache.codec import KvCodec, RowFormat, decode, row_layout
from ninfer.kernels.placement import HOST, Placement

PAGE_TOKENS = 64
"""Tokens per page; a token at position p of its sequence is column p % 64 of the sequence's page p // 64."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One side's rows: codes [P, kv_heads, 64, codes] and scales [P, kv_heads, 64, scales] (last size 0: none)."""

    row_format: RowFormat
    codes: torch.Tensor
    scales: torch.Tensor

    def read(self, pages: torch.Tensor) -> torch.Tensor:
        """The rows of pages int64 [n], decoded to fp32 [n, kv_heads, 64, head_dim]; a fresh tensor."""
        scales = self.scales.index_select(0, pages) if self.scales.shape[-1] else self.scales
        return decode(self.row_format, self.codes.index_select(0, pages), scales)


@dataclass(frozen=True, slots=True)
class KvPool:
    """P pages of one layer. A frozen holder: its tensors are the storage and are written in place."""

    codec: KvCodec
    pages: int
    kv_heads: int
    head_dim: int
    keys: Plane
    values: Plane

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page: both sides, codes and scales."""
        return sum(tensor[:1].nbytes for tensor in self._tensors())

    def copy_page(self, source: int, target: int) -> None:
        """Copy every column of page `source` to page `target`.

        Raises:
            ValueError: a page outside the pool.
        """
        self.copy_columns(source, target, PAGE_TOKENS)

    def copy_columns(self, source: int, target: int, columns: int) -> None:
        """Copy the first `columns` columns of page `source` to page `target`; the others stay as they are.

        Raises:
            ValueError: a page outside the pool, or more columns than a page has.
        """
        self._check(source, target, columns=columns)
        for tensor in self._tensors():
            tensor[target, :, :columns].copy_(tensor[source, :, :columns])

    def pack_page(self, page: int, out: torch.Tensor) -> None:
        """Write the page's bytes to out uint8 [bytes_per_page], in the order that `unpack_page` reads.

        Raises:
            ValueError: a page outside the pool, or `out` of another size or dtype.
        """
        for stored, packed in self._packed(page, out):
            packed.copy_(stored, non_blocking=True)

    def unpack_page(self, packed: torch.Tensor, page: int) -> None:
        """Fill the page from the uint8 [bytes_per_page] of `pack_page`, bit for bit.

        Raises:
            ValueError: a page outside the pool, or `packed` of another size or dtype.
        """
        for stored, replica in self._packed(page, packed):
            stored.copy_(replica, non_blocking=True)

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return self.keys.codes, self.keys.scales, self.values.codes, self.values.scales

    def _packed(self, page: int, buffer: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self._check(page)
        if buffer.dtype is not torch.uint8 or buffer.shape != (self.bytes_per_page,):
            raise ValueError(f"kv pool: a packed page is uint8 [{self.bytes_per_page}], got {buffer.dtype} "
                             f"{list(buffer.shape)}")  # fmt: skip
        begin = 0
        for tensor in self._tensors():
            stored = tensor[page].view(-1).view(torch.uint8)
            yield stored, buffer[begin : begin + stored.numel()]
            begin += stored.numel()

    def _check(self, *pages: int, columns: int = PAGE_TOKENS) -> None:
        for page in pages:
            if not 0 <= page < self.pages:
                raise ValueError(f"kv pool: page {page} is outside [0, {self.pages})")
        if not 0 <= columns <= PAGE_TOKENS:
            raise ValueError(f"kv pool: columns must be in [0, {PAGE_TOKENS}], got {columns}")


def make_kv_pool(codec: KvCodec, pages: int, kv_heads: int, head_dim: int, placement: Placement = HOST) -> KvPool:
    """Allocate a zeroed pool.

    Raises:
        ValueError: a count is not positive, or head_dim is no multiple of 64.
    """
    if pages <= 0 or kv_heads <= 0:
        raise ValueError(f"kv pool: pages and kv_heads must be > 0, got {pages} and {kv_heads}")
    if head_dim <= 0 or head_dim % 64:
        raise ValueError(f"kv pool: head_dim must be a positive multiple of 64, got {head_dim}")
    rows = (pages, kv_heads, PAGE_TOKENS)
    keys, values = (_plane(side, rows, head_dim, placement) for side in (codec.key_format, codec.value_format))
    return KvPool(codec, pages, kv_heads, head_dim, keys, values)


def _plane(row_format: RowFormat, rows: tuple[int, int, int], head_dim: int, placement: Placement) -> Plane:
    layout = row_layout(row_format, head_dim)
    codes = placement.zeros(*rows, layout.codes, dtype=layout.code_dtype)
    return Plane(row_format, codes, placement.zeros(*rows, layout.scales, dtype=layout.scale_dtype))
