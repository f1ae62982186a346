"""embedding with torch: gather the stored bytes of the rows, then decode only those.

Each value is one exact conversion and at most one multiplication (and, for NVFP4, one division) in fp32, so it does
not depend on the other rows. Formats: artifact v3, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ninfer.artifact.formats import Format, FormatSpec
from ninfer.artifact.layouts import PlaneName

if TYPE_CHECKING:
    from ninfer.kernels.weights import TableWeight

_DIRECT: Mapping[Format, torch.dtype] = MappingProxyType({Format.BF16: torch.bfloat16, Format.FP32: torch.float32})
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def embedding(token_ids: torch.Tensor, table: TableWeight, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    fmt = table.format
    if fmt.is_direct:
        out.copy_(_rows(table, PlaneName.VALUES, token_ids).view(_DIRECT[fmt]))
    elif fmt.is_grouped:
        _grouped(table, token_ids, out)
    elif fmt is Format.FP8_ROW:
        codes = _rows(table, PlaneName.CODES, token_ids).view(torch.float8_e4m3fn).float()
        scales = _rows(table, PlaneName.SCALES, token_ids).view(torch.bfloat16).float()
        torch.mul(codes, scales, out=out)
    else:
        _nvfp4(table, token_ids, out)


def _rows(table: TableWeight, name: PlaneName, token_ids: torch.Tensor) -> torch.Tensor:
    return table.planes[name].index_select(0, token_ids)


def _grouped(table: TableWeight, token_ids: torch.Tensor, out: torch.Tensor) -> None:
    tokens, spec = len(token_ids), table.format.spec
    lanes = _unpack(_rows(table, PlaneName.CODES, token_ids), spec.base_bits)
    if spec.high_bits:
        lanes |= _unpack(_rows(table, PlaneName.HIGH_BITS, token_ids), spec.high_bits) << spec.base_bits
    scales = _rows(table, PlaneName.SCALES, token_ids).view(torch.float16).float()
    values = _signed(lanes, spec).float().view(tokens, -1, spec.group) * scales.unsqueeze(-1)
    out.copy_(values.view(tokens, -1)[:, : table.columns])


def _unpack(data: torch.Tensor, bits: int) -> torch.Tensor:
    """Fields of `bits` bits of uint8 [T, n], lowest first, as uint8 [T, n * 8 / bits]."""
    if bits == 8:
        return data
    fields = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return torch.stack(fields, dim=-1).flatten(1)


def _signed(lanes: torch.Tensor, spec: FormatSpec) -> torch.Tensor:
    """Two's complement of `code_bits` bits in uint8 as int8."""
    unused = 8 - spec.code_bits
    return (lanes << unused).view(torch.int8) >> unused


def _nvfp4(table: TableWeight, token_ids: torch.Tensor, out: torch.Tensor) -> None:
    nibbles = _unpack(_rows(table, PlaneName.CODES, token_ids), 4)
    scales = table.planes[PlaneName.SCALES][_scale_offsets(token_ids, table.columns // 16)].view(torch.float8_e4m3fn)
    divisor = table.planes[PlaneName.DIVISOR].clone().view(torch.float32)
    values = torch.tensor(_E2M1)[nibbles.int()].view(len(token_ids), -1, 16) * scales.float().unsqueeze(-1)
    torch.div(values.view(len(token_ids), -1), divisor, out=out)


def _scale_offsets(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """Where the scales of these rows lie in the plane of `block_scale_k16_m128x4_v1`: [T, groups]."""
    within_tile = rows % 32 * 16 + rows % 128 // 32 * 4
    group = torch.arange(groups)
    tile = (rows // 128 * (groups // 4)).unsqueeze(1) + group // 4
    return tile * 512 + within_tile.unsqueeze(1) + group % 4
