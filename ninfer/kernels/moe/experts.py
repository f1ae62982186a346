"""The weights of all routed experts of one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer.errors import ConfigError
from ninfer.kernels.moe import compiled_cpu, cuda_experts

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """Per expert: gate's rows then up's [2I, H], and down [H, I]. All experts have one geometry.

    Attributes:
        table: all of them for the route that reads stored weights; None where there is none.
    """

    gate_up: tuple[LinearWeight, ...]
    down: tuple[LinearWeight, ...]
    table: compiled_cpu.ExpertTable | cuda_experts.DeviceExperts | None

    @property
    def count(self) -> int:
        return len(self.gate_up)

    @property
    def columns(self) -> int:
        """H, the width of the block's input and output."""
        return self.gate_up[0].columns

    @property
    def products(self) -> int:
        """I, the width of an expert's gated products."""
        return self.down[0].columns

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weight in (*self.gate_up, *self.down))


def prepare_experts(gate_up: Sequence[LinearWeight], down: Sequence[LinearWeight]) -> ExpertWeights:
    """Put the weights of E experts together.

    Raises:
        ConfigError: none, a different number of each, shapes that do not fit one another, or weights that the kernels
            of their device cannot multiply by.
    """
    if not gate_up or len(gate_up) != len(down):
        raise ConfigError(f"experts need as many gate_up as down weights, got {len(gate_up)} and {len(down)}")
    hidden, products = gate_up[0].columns, down[0].columns
    for index, (first, second) in enumerate(zip(gate_up, down, strict=True)):
        if (first.rows, first.columns, second.rows, second.columns) != (2 * products, hidden, hidden, products):
            raise ConfigError(
                f"expert {index}: gate_up [{first.rows}, {first.columns}] and down [{second.rows}, {second.columns}] "
                f"do not fit [{2 * products}, {hidden}] and [{hidden}, {products}]"
            )
    table = cuda_experts.prepare(gate_up, down) or compiled_cpu.prepare(gate_up, down)
    return ExpertWeights(tuple(gate_up), tuple(down), table)
