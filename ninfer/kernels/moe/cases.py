"""Shapes at which the mixture-of-experts ops are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ninfer.artifact.formats import Format


@dataclass(frozen=True, slots=True)
class Case:
    """T rows over E experts, top k; H columns and I products per expert. Router logits from `levels` values if > 0.

    Attributes:
        gate_up, down: formats of the experts' weights.
        a8: whether they permit 8-bit activations.
        signs: whether their inputs are rotated.
    """

    name: str
    rows: int
    experts: int
    top_k: int
    hidden: int = 0
    products: int = 0
    levels: int = 0
    gate_up: Format = Format.FP32
    down: Format = Format.FP32
    a8: bool = False
    signs: bool = False


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "moe_route": (
            Case("official_35b", 9, 256, 8),
            Case("all_experts", 3, 5, 5),
            Case("one_expert", 2, 1, 1),
            Case("ties", 7, 64, 6, levels=3),
            Case("all_equal", 2, 33, 4, levels=1),
        ),
        "moe_experts": (
            Case("official_35b", 2, 3, 2, 2048, 512, gate_up=Format.Q4, down=Format.Q5),
            Case("official_35b_a8", 2, 3, 2, 2048, 512, gate_up=Format.Q4, down=Format.Q5, a8=True),
            Case("demo", 19, 8, 2, 256, 96, gate_up=Format.Q8, down=Format.Q8),
            Case("demo_a8", 19, 8, 2, 256, 96, gate_up=Format.Q8, down=Format.Q8, a8=True),
            Case("half_a8", 3, 4, 2, 128, 64, gate_up=Format.Q6, down=Format.BF16, a8=True),
            Case("ternary_a8", 3, 4, 3, 300, 70, gate_up=Format.T2, down=Format.Q6, a8=True),
            Case("rotated", 2, 3, 2, 1024, 1024, gate_up=Format.Q4, down=Format.T2, signs=True),
            Case("rotated_a8", 2, 3, 2, 1024, 1024, gate_up=Format.T2, down=Format.Q4, a8=True, signs=True),
            Case("floats", 3, 3, 2, 192, 128, gate_up=Format.FP8_ROW, down=Format.BF16),
            Case("nvfp4", 2, 3, 2, 128, 64, gate_up=Format.NVFP4, down=Format.NVFP4),
            Case("many_rows", 130, 6, 2, 64, 32, gate_up=Format.Q5, down=Format.Q6),
            Case("one_takes_all", 300, 1, 1, 64, 33),
            Case("all_experts", 5, 3, 3, 130, 7),
            Case("one", 1, 1, 1, 1, 1),
        ),
        "moe_shared_add": (
            Case("official_35b", 9, 1, 1, hidden=2048),
            Case("one", 1, 1, 1, hidden=1),
            Case("ragged", 7, 1, 1, hidden=259),
        ),
    }
)
