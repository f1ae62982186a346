"""Moves state between places: page copies, image copies, and packing to and from host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ninfer.kernels.placement import HOST, Placement
from ninfer.models.qwen3_5.state import ModelState
from ninfer.runtime.program.host_arena import Extent


class Transfers:
    """Copies of whole pages and images of one ModelState, over all layers.

    `host_images` image slots and `host_bytes` of packed pages live in host memory, allocated once. Copies to and from
    there never block the host: later units and copies see them done, in the placement's order.
    """

    def __init__(self, state: ModelState, host_images: int, host_bytes: int, placement: Placement = HOST) -> None:
        self._state = state
        self._placement = placement
        self._page_bytes = sum(pool.bytes_per_page for pool in state.kv)
        self._image_bytes = sum(tensor[0].nbytes for tensor in self._image_tensors())
        self._host_pages = placement.pinned(host_bytes)
        self._host_images = placement.pinned(host_images, self.image_bytes)

    @property
    def page_bytes(self) -> int:
        """Packed bytes of one page, all layers."""
        return self._page_bytes

    @property
    def image_bytes(self) -> int:
        """Bytes of one state image, all layers."""
        return self._image_bytes

    def copy_columns(self, source: int, target: int, columns: int) -> None:
        """Copy the first columns of one device page to another."""
        for pool in self._state.kv:
            pool.copy_columns(source, target, columns)

    def copy_image(self, source: int, target: int) -> None:
        """Copy one device image slot to another."""
        for tensor in self._image_tensors():
            tensor[target].copy_(tensor[source])

    def pack_pages(self, pages: Sequence[int], extent: Extent) -> None:
        """Pack device pages, one after another, into an extent of their size."""
        with self._placement.transfers():
            begin = extent.begin
            for page in pages:
                for pool in self._state.kv:
                    pool.pack_page(page, self._host_pages[begin : begin + pool.bytes_per_page])
                    begin += pool.bytes_per_page

    def unpack_page(self, extent: Extent, page: int) -> None:
        """Fill a device page from its packed bytes."""
        with self._placement.transfers():
            begin = extent.begin
            for pool in self._state.kv:
                pool.unpack_page(self._host_pages[begin : begin + pool.bytes_per_page], page)
                begin += pool.bytes_per_page

    def store_image(self, source: int, host: int) -> None:
        """Copy a device image slot to a host slot."""
        with self._placement.transfers():
            for flat, stored in self._image_pieces(source, host):
                stored.copy_(flat, non_blocking=True)

    def load_image(self, host: int, target: int) -> None:
        """Copy a host slot to a device image slot."""
        with self._placement.transfers():
            for flat, stored in self._image_pieces(target, host):
                flat.copy_(stored, non_blocking=True)

    def _image_pieces(self, image: int, host: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The bytes of every layer's tensors in a device slot, and their places in a host slot."""
        begin = 0
        for tensor in self._image_tensors():
            flat = tensor[image].view(-1).view(torch.uint8)
            yield flat, self._host_images[host, begin : begin + flat.numel()]
            begin += flat.numel()

    def _image_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for layer in self._state.gdn for tensor in (layer.state, layer.history))
