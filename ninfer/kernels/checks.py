"""Cheap argument checks shared by the ops: one comparison each on the way that succeeds."""

from __future__ import annotations

import torch


def check(op: str, name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Require a contiguous tensor of exactly this shape and dtype.

    Raises:
        ValueError: naming the op, the argument, what was expected and what came.
    """
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(f"{op}: {name} must be {_words(shape, dtype)}, got {_describe(tensor)}")


def check_matrix(op: str, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> tuple[int, int]:
    """Require a contiguous rank-2 tensor of this dtype; returns its (rows, columns).

    Raises:
        ValueError: naming the op, the argument, what was expected and what came.
    """
    if tensor.dim() != 2 or tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(f"{op}: {name} must be a contiguous {dtype} matrix, got {_describe(tensor)}")
    rows, columns = tensor.shape
    return rows, columns


def _words(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"a contiguous {dtype} tensor of shape {list(shape)}"


def _describe(tensor: torch.Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{tensor.dtype} of shape {list(tensor.shape)}{strides}"
