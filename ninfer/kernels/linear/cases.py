"""Weights and row counts at which linear is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ninfer.artifact.formats import Format


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [begin, end) of a parent of `parent_rows` rows stored as `format`."""

    format: Format
    parent_rows: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Case:
    """T tokens of K columns times the concatenation of `parts`."""

    name: str
    tokens: int
    columns: int
    parts: tuple[Rows, ...]
    signs: bool = False
    residual: bool = False


def _whole(fmt: Format, rows: int) -> tuple[Rows, ...]:
    return (Rows(fmt, rows, 0, rows),)


_FORMATS = tuple(fmt for fmt in Format if fmt is not Format.INT32)
_ROWWISE = tuple(fmt for fmt in _FORMATS if fmt is not Format.NVFP4)

CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "linear": (
            *(Case(f"{fmt.value}_whole", 3, 256, _whole(fmt, 128), residual=True) for fmt in _FORMATS),
            *(Case(f"{fmt.value}_range_ragged", 5, 130, (Rows(fmt, 23, 7, 20),)) for fmt in _ROWWISE),
            Case(
                "several_parents",
                9,
                192,
                (
                    Rows(Format.Q4, 40, 8, 31),
                    Rows(Format.BF16, 3, 1, 2),
                    Rows(Format.NVFP4, 128, 0, 128),
                    Rows(Format.Q4, 40, 0, 8),
                    Rows(Format.FP8_ROW, 11, 4, 11),
                ),
            ),
            *(
                Case(f"blocks_of_columns_{tokens}", tokens, 2110, tuple(Rows(fmt, 9, 1, 6) for fmt in _ROWWISE))
                for tokens in (1, 2, 3, 10)
            ),
            *(
                Case(f"nvfp4_blocks_{tokens}", tokens, 4160, _whole(Format.NVFP4, 128), residual=True)
                for tokens in (1, 2, 5, 9)
            ),
            Case("blocks_of_tokens", 261, 96, _whole(Format.Q6, 50), residual=True),
            Case("one_row_one_column", 1, 1, _whole(Format.FP32, 1)),
            Case("one_output", 17, 1000, _whole(Format.BF16, 1)),
            Case("hadamard", 4, 2048, _whole(Format.Q8, 33), signs=True, residual=True),
            Case("hadamard_ternary", 1, 1024, _whole(Format.T2, 65), signs=True),
            Case("expert_gate_up_35b", 2, 2048, _whole(Format.Q4, 1024)),
            Case("expert_down_35b", 2, 512, _whole(Format.Q5, 2048)),
            Case("kv_27b", 1, 5120, _whole(Format.Q5, 1024)),
            Case("down_27b_columns", 8, 17408, _whole(Format.Q5, 130)),
            Case("small_0_8b", 33, 1024, _whole(Format.Q8, 768), residual=True),
        )
    }
)
