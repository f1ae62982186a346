"""Finds the data of parameters in checkpoints: prefixes, alternatives, shapes, dtypes, encoded modules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ninfer.artifact.floats import U16
from ninfer.artifact.formats import Format
from ninfer.convert.data import Data, Fp8Data, Nvfp4Data, PlainData
from ninfer.convert.methods import Method, import_encoded
from ninfer.convert.sources.checkpoint import Checkpoint
from ninfer.convert.sources.encoded import EncodedMatrix, EncodedSource
from ninfer.convert.sources.rows import (
    FLOAT_DTYPES,
    ConstantRows,
    RowSource,
    SlicedRows,
    TensorRows,
    TransposedRows,
)
from ninfer.convert.sources.tensor_file import TensorEntry, TensorReader
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.inventory import ParameterSpec, RowBlocks, SourceRoot, SourceSpec

BASE = "base"
_PREFIXES = {
    SourceRoot.TOP: ("",),
    SourceRoot.TEXT: ("model.language_model.", "model."),
    SourceRoot.VISION: ("model.visual.", "visual."),
}
_ANCHORS = {SourceRoot.TOP: "", SourceRoot.TEXT: "layers.0.", SourceRoot.VISION: "patch_embed."}


class SourceSet:
    """The checkpoints of one conversion. `base` is the main one; a component's own source carries its name."""

    def __init__(self, checkpoints: Mapping[str, Checkpoint], reader: TensorReader) -> None:
        self.checkpoints = checkpoints
        self._reader = reader
        self._encoded: dict[str, EncodedSource] = {}
        self._prefixes: dict[tuple[str, SourceRoot], str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.checkpoints)

    def source_of(self, component: str) -> Checkpoint:
        """The checkpoint that a component comes from unless its recipe says otherwise."""
        return self.checkpoints.get(component, self.checkpoints[BASE])

    def tensor_name(self, checkpoint: Checkpoint, spec: SourceSpec) -> str:
        """The name of a source tensor in this checkpoint, present or not."""
        return self._prefix(checkpoint, spec.root) + spec.tensor

    def data(self, parameter: ParameterSpec, source: str | None, method: Method, fmt: Format) -> Data:
        """All rows of a parameter, checked but not read.

        Raises:
            ConfigError: names tensor and parameter: missing, wrong shape or dtype, not quantised as wanted.
        """
        assert parameter.source is not None
        name = parameter.component if source is None else source
        checkpoint = self.source_of(name) if source is None else self.checkpoints[name]
        if method is import_encoded:
            return self._imported(parameter, checkpoint, fmt)
        spec = self._present(parameter.source, checkpoint)
        entry = self._checked(spec, checkpoint, parameter.name)
        rows = TensorRows(entry, spec.row_count, spec.rows)
        return PlainData(TransposedRows(rows) if spec.transposed else rows)

    def whole(self, spec: SourceSpec, checkpoint: Checkpoint, parameter: str) -> TensorRows:
        """All rows of a source matrix."""
        entry = self._checked(spec, checkpoint, parameter)
        return TensorRows(entry, spec.row_count, RowBlocks(0, spec.row_count))

    def input_divisor(self, parameter: ParameterSpec, source: str | None) -> np.float32 | None:
        """The activation divisor that an imported NVFP4 matrix brings along, None when it has none."""
        assert parameter.source is not None
        checkpoint = self.source_of(parameter.component) if source is None else self.checkpoints[source]
        return self._matrix(parameter.source, checkpoint)[1].input_divisor

    def _prefix(self, checkpoint: Checkpoint, root: SourceRoot) -> str:
        key = (checkpoint.name, root)
        if key not in self._prefixes:
            found = (
                prefix
                for prefix in _PREFIXES[root]
                if any(name.startswith(prefix + _ANCHORS[root]) for name in checkpoint.tensors)
            )
            self._prefixes[key] = next(found, _PREFIXES[root][0])
        return self._prefixes[key]

    def _present(self, spec: SourceSpec, checkpoint: Checkpoint) -> SourceSpec:
        """The spec itself, or its alternative where only that one is in the checkpoint."""
        absent = self.tensor_name(checkpoint, spec) not in checkpoint.tensors
        other = spec.alternative
        if absent and other is not None and self.tensor_name(checkpoint, other) in checkpoint.tensors:
            return other
        return spec

    def _checked(self, spec: SourceSpec, checkpoint: Checkpoint, parameter: str) -> TensorEntry:
        name = self.tensor_name(checkpoint, spec)
        entry = checkpoint.tensors.get(name)
        where = f"{checkpoint.path}: tensor {name!r} (parameter {parameter})"
        if entry is None:
            packed = f"{name.removesuffix('.weight')}.weight_packed" in checkpoint.tensors
            raise ConfigError(f"{where} is stored as codes; assign import_encoded" if packed else f"{where} is missing")
        if entry.shape != spec.shape:
            raise ConfigError(f"{where} has shape {list(entry.shape)}, the config needs {list(spec.shape)}")
        if entry.dtype not in FLOAT_DTYPES:
            remedy = "; assign import_encoded" if entry.dtype in ("F8_E4M3", "U8") else ""
            raise ConfigError(f"{where} has dtype {entry.dtype}, expected BF16, F16 or F32{remedy}")
        return entry

    def _imported(self, parameter: ParameterSpec, checkpoint: Checkpoint, fmt: Format) -> Fp8Data | Nvfp4Data:
        assert parameter.source is not None
        spec, matrix = self._matrix(parameter.source, checkpoint)
        if matrix.format is not fmt:
            found = f"{matrix.format.value} in {checkpoint.path}, not {fmt.value}"
            raise ConfigError(f"recipe: {parameter.name} is stored as {found}")
        codes = TensorRows(matrix.codes, spec.row_count, spec.rows)
        if matrix.row_scales is not None:
            return Fp8Data(codes, ConstantRows(_select(matrix.row_scales, spec.rows)))
        assert matrix.block_scales is not None
        assert matrix.divisor is not None
        return Nvfp4Data(codes, TensorRows(matrix.block_scales, spec.row_count, spec.rows), matrix.divisor)

    def _matrix(self, source: SourceSpec, checkpoint: Checkpoint) -> tuple[SourceSpec, EncodedMatrix]:
        encoded = self._encoded.setdefault(checkpoint.name, EncodedSource(checkpoint, self._reader))
        options = [spec for spec in (source, source.alternative) if spec is not None]
        modules = [self.tensor_name(checkpoint, spec).removesuffix(".weight") for spec in options]
        chosen = next((i for i, module in enumerate(modules) if encoded.has(module)), 0)
        spec = options[chosen]
        return spec, encoded.matrix(modules[chosen], (spec.row_count, spec.columns))


def sliced(data: Data, begin: int, end: int) -> Data:
    """Rows `[begin, end)` of some data."""
    if (begin, end) == (0, data.rows):
        return data

    def cut(rows: RowSource) -> RowSource:
        return SlicedRows(rows, begin, end)

    if isinstance(data, PlainData):
        return PlainData(cut(data.values))
    if isinstance(data, Fp8Data):
        return Fp8Data(cut(data.codes), cut(data.scales))
    return Nvfp4Data(cut(data.codes), cut(data.scales), data.divisor)


def _select(scales: U16, rows: RowBlocks) -> U16:
    spans = [scales[begin:end] for begin, end in rows.spans(0, rows.rows)]
    return np.concatenate(spans).reshape(-1, 1)
