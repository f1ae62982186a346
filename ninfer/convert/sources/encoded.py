"""Checkpoints whose matrices are already FP8 or NVFP4: compressed-tensors and ModelOpt.

Every module is resolved by the config group it belongs to; the tensors found must agree with that group.
Scale directions differ: compressed-tensors keeps NVFP4's per-matrix `weight_global_scale` and the input's
`input_global_scale` as divisors, ModelOpt its `weight_scale_2` and `input_scale` as multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.floats import U16, bf16_to_fp32, fp32_to_bf16
from ninfer.artifact.formats import Format
from ninfer.convert.sources.checkpoint import Checkpoint
from ninfer.convert.sources.schemes import Schemes
from ninfer.convert.sources.tensor_file import TensorEntry, TensorReader
from ninfer.errors import ConfigError

_NVFP4_GROUP = 16


@dataclass(frozen=True, slots=True, eq=False)
class EncodedMatrix:
    """One quantised matrix of shape [rows, columns] where it lies.

    Attributes:
        codes: E4M3FN bytes [rows, columns], or NVFP4 nibble pairs [rows, columns / 2], low nibble first.
        row_scales: FP8 only: bf16 bit patterns [rows].
        block_scales: NVFP4 only: E4M3FN bytes [rows, columns / 16].
        divisor: NVFP4 only: w = e2m1 * block scale / divisor.
        input_divisor: NVFP4 only: the same for activations, when the source states one.
    """

    format: Format
    codes: TensorEntry
    row_scales: U16 | None = None
    block_scales: TensorEntry | None = None
    divisor: np.float32 | None = None
    input_divisor: np.float32 | None = None


class EncodedSource:
    """Finds the quantised form of a checkpoint's modules."""

    def __init__(self, checkpoint: Checkpoint, reader: TensorReader) -> None:
        self._checkpoint = checkpoint
        self._reader = reader
        self._schemes = Schemes.of(checkpoint)

    def has(self, module: str) -> bool:
        """True when the checkpoint keeps codes for `module`."""
        tensors = self._checkpoint.tensors
        return f"{module}.weight_packed" in tensors or f"{module}.weight_scale" in tensors

    def matrix(self, module: str, shape: tuple[int, int]) -> EncodedMatrix:
        """The codes and scales of `module`, whose decoded weight has `shape`.

        Raises:
            ConfigError: names the module or tensor: not quantised, a scheme that cannot be imported, tensors
                that contradict the module's config group, wrong shapes or dtypes, scales the artifact's
                formats cannot hold.
        """
        scheme = self._schemes.of_module(module)
        if scheme is None or not self.has(module):
            state = "is not quantised" if scheme is None else f"has no {scheme.value} codes"
            raise ConfigError(f"{self._checkpoint.path}: module {module!r} {state}; import_encoded needs codes")
        return self._fp8(module, shape) if scheme is Format.FP8_ROW else self._nvfp4(module, shape)

    def _fp8(self, module: str, shape: tuple[int, int]) -> EncodedMatrix:
        codes = self._entry(f"{module}.weight", "F8_E4M3", shape)
        return EncodedMatrix(Format.FP8_ROW, codes, row_scales=self._row_scales(f"{module}.weight_scale", shape[0]))

    def _row_scales(self, name: str, rows: int) -> U16:
        """Multipliers [rows] as bf16 bits; a per-tensor scale is repeated. They must be bf16 values already."""
        values = self._floats(name)
        if values.size not in (1, rows) or values.shape not in ((), (1,), (1, 1), (rows,), (rows, 1)):
            raise ConfigError(f"{self._where(name)}: shape {list(values.shape)} is no per-row or per-tensor scale")
        flat = np.broadcast_to(values.reshape(-1), (rows,))
        bits = fp32_to_bf16(np.ascontiguousarray(flat))
        if not np.array_equal(bf16_to_fp32(bits), flat):
            raise ConfigError(f"{self._where(name)}: scales are no bf16 values; use fp8_row_maxabs on a bf16 source")
        if not (np.isfinite(flat).all() and (flat >= 0).all()):
            raise ConfigError(f"{self._where(name)}: scales must be finite and not negative")
        return bits & np.uint16(0x7FFF)

    def _nvfp4(self, module: str, shape: tuple[int, int]) -> EncodedMatrix:
        rows, columns = shape
        packed = f"{module}.weight_packed" in self._checkpoint.tensors
        codes = self._entry(f"{module}.weight_packed" if packed else f"{module}.weight", "U8", (rows, columns // 2))
        scales = self._entry(f"{module}.weight_scale", "F8_E4M3", (rows, columns // _NVFP4_GROUP))
        divisor = self._divisor(module, "weight_global_scale", "weight_scale_2")
        if divisor is None:
            raise ConfigError(f"{self._where(module)}: neither weight_global_scale nor weight_scale_2 is present")
        input_divisor = self._divisor(module, "input_global_scale", "input_scale")
        return EncodedMatrix(Format.NVFP4, codes, None, scales, divisor, input_divisor)

    def _divisor(self, module: str, divisor: str, multiplier: str) -> np.float32 | None:
        """A scalar stored as a divisor under one name or as a multiplier under the other."""
        names = [f"{module}.{name}" for name in (divisor, multiplier)]
        present = [name for name in names if name in self._checkpoint.tensors]
        if len(present) == 2:
            raise ConfigError(f"{self._where(names[0])}: both {divisor} and {multiplier} are present")
        if not present:
            return None
        values = self._floats(present[0])
        if values.size != 1 or not np.isfinite(values).all() or (values <= 0).any():
            raise ConfigError(f"{self._where(present[0])}: expected one positive finite number")
        value = np.float32(values.reshape(-1)[0])
        return value if present[0] == names[0] else np.float32(1) / value

    def _entry(self, name: str, dtype: str, shape: tuple[int, int]) -> TensorEntry:
        entry = self._checkpoint.tensor(name)
        if entry.dtype != dtype or entry.shape != shape:
            found = f"{entry.dtype} {list(entry.shape)}"
            raise ConfigError(f"{self._where(name)}: expected {dtype} {list(shape)}, found {found}")
        return entry

    def _floats(self, name: str) -> NDArray[np.float32]:
        entry = self._checkpoint.tensor(name)
        data = self._reader.read(entry, 0, entry.nbytes)
        if entry.dtype == "BF16":
            values = bf16_to_fp32(data.view("<u2"))
        elif entry.dtype in ("F32", "F16"):
            values = data.view("<f4" if entry.dtype == "F32" else "<f2").astype(np.float32)
        else:
            raise ConfigError(f"{self._where(name)}: expected a float scale, found {entry.dtype}")
        return values.reshape(entry.shape)

    def _where(self, name: str) -> str:
        return f"{self._checkpoint.path}: {name}"
