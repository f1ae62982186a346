"""The emulated device as Engines use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ninfer.kernels.jit import CudaSource
from ninfer.models.qwen3_5 import attention, binding, gdn, mlp, moe, text
from tests.kernels.emulator import Emulator


class Unwarmed(Emulator):
    """Compiles a kernel when it is launched first: a tiny model needs few of those that official ones do."""

    def prepare(self, source: CudaSource, macros: Mapping[str, int]) -> None:
        """Nothing."""


@contextmanager
def rounded_activations() -> Iterator[None]:
    """Inside, models that are opened and run on the CPU round the inputs of linears to bf16, as CUDA's do.

    Without that, a near tie of two experts may be decided otherwise, and then nothing can be compared.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(binding, "_allows_a8", lambda uses: False))
        for module in (attention, gdn, mlp, moe, text):
            for op in ("linear", "projections", "gate_up_swiglu", "moe_experts"):
                if hasattr(module, op):
                    stack.enter_context(patch.object(module, op, _rounding(getattr(module, op))))
        yield


def _rounding(op: Callable[..., None]) -> Callable[..., None]:
    def rounded(x: torch.Tensor, *arguments: Any) -> None:
        op(x.bfloat16().float(), *arguments)

    return rounded
