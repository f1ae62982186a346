"""Scratch memory of kernels, at addresses that stay."""

from __future__ import annotations

import torch

from ninfer.errors import CudaError

_GRAIN = 256  # bytes; what a buffer's size is rounded up to


class Workspaces:
    """One buffer per torch device and purpose. It grows on demand and never shrinks.

    A buffer that was outgrown lives on for as long as a recording that points to it: its launches keep it.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.device, str], torch.Tensor] = {}
        self._taken: dict[tuple[torch.device, str], torch.Tensor] = {}  # the last answers: rounds repeat them

    def take(self, purpose: str, nbytes: int, device: torch.device, recording: bool) -> torch.Tensor:
        """uint8 [nbytes], 256-byte aligned on a GPU, with unknown content.

        Raises:
            CudaError: the buffer would have to grow while launches are recorded.
        """
        key = (device, purpose)
        taken = self._taken.get(key)
        if taken is None or len(taken) != nbytes:
            taken = self._taken[key] = self._buffer(key, nbytes, recording)[:nbytes]
        return taken

    def _buffer(self, key: tuple[torch.device, str], nbytes: int, recording: bool) -> torch.Tensor:
        device, purpose = key
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < nbytes:
            if recording:
                raise CudaError(
                    f"{purpose} needs {nbytes} bytes of workspace, more than before, while a CUDA graph is recorded;"
                    " run the same work once before recording it"
                )
            size = -(-nbytes // _GRAIN) * _GRAIN
            buffer = self._buffers[key] = torch.empty(size, dtype=torch.uint8, device=device)
        return buffer
