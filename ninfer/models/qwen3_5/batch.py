"""What one forward pass consumes: tokens of B sequences and where their state lives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots


@dataclass(frozen=True, slots=True)
class Batch:
    """T query tokens of B rows, laid one row after another.

    Attributes:
        token_ids: i64[T].
        positions: i32[3, T], rotary positions (time, height, width).
        segments: how the T tokens divide into rows, and where each row starts in its sequence.
        tables: i32[B, L], page ids of each row's key/value pages.
        slots: i64[T], page * 64 + offset where each token's keys and values go.
        states: per row the state image that is read (`ZERO` for an empty sequence) and the one that is written.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    segments: Segments
    tables: torch.Tensor
    slots: torch.Tensor
    states: StateSlots
