"""ModelInstance: opens an artifact, binds and prepares what is wanted of it, and builds Program and Frontend on it.

Order of life: instance first, then the cores that use it; at the end the cores close before the instance does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ninfer.artifact.reader import ArtifactReader
from ninfer.collector import collector_paused
from ninfer.errors import ConfigError
from ninfer.frontend import Frontend
from ninfer.kernels import has_compiled_routes, jit, native
from ninfer.kernels.kv_cache import KvCodec
from ninfer.kernels.placement import HOST, Placement
from ninfer.kernels.routes import DeviceKind
from ninfer.kernels.sampling import allow_only
from ninfer.models.qwen3_5.binding import Binder, read_config
from ninfer.models.qwen3_5.config import Architecture, ModelConfig
from ninfer.models.qwen3_5.inventory import RESOURCE_ROLES
from ninfer.models.qwen3_5.parameters import build_text_model
from ninfer.models.qwen3_5.state import allocate_state, image_bytes
from ninfer.models.qwen3_5.text import TextModel
from ninfer.models.qwen3_5.workspace import workspace_bytes
from ninfer.runtime.options import DeviceMemory, SettledOptions, settle
from ninfer.runtime.planning import Shape, memory_curve, require_room
from ninfer.runtime.program.pages import PagePool, PageStore, pages_for
from ninfer.runtime.program.program import Program
from ninfer.runtime.program.rounds import Recorder, Repeated, taped
from ninfer.runtime.program.scoring import HEAD_ROWS, IMAGES, WindowScorer
from ninfer.runtime.program.stores import image_slots
from ninfer.runtime.program.transfers import Transfers
from ninfer.runtime.program.units import Executor
from ninfer.types import EngineOptions

Progress = Callable[[str, int, int], None]
"""(phase, done, total), called while something takes long."""


@dataclass(frozen=True, slots=True)
class ModelInstance:
    """One resident model: read-only weights and resources. Holds no request state.

    `compiled` says that every op has its compiled kernels here; `placement` is where the weights live and where every
    Program's state will.
    """

    path: Path
    name: str
    config: ModelConfig
    model: TextModel
    frontend: Frontend
    parameters: int
    weight_bytes: int
    load_seconds: float
    compiled: bool
    placement: Placement = HOST

    @staticmethod
    def open(
        path: str | os.PathLike[str], progress: Progress | None = None, placement: Placement = HOST
    ) -> ModelInstance:
        """Open, check and prepare the artifact at `path`.

        Raises:
            ArtifactError: a missing, malformed or inconsistent file set.
            ConfigError: a config or format that cannot be run, or more weights than the device holds.
            CudaError: kernels cannot be compiled for the device.
        """
        started, report = time.monotonic(), progress or _silent
        with (
            collector_paused(),
            ArtifactReader.open(Path(path)) as reader,
            placement.uploading() as bring,
        ):
            where = str(path)
            config = read_config(reader.directory, where)
            binder = Binder(reader, where, placement, bring)
            binder.check(config, ("text",))
            _check_room(placement, binder.stored_bytes(config, ("text",)))
            compiled = _compile(placement.kind, lambda done, total: report("compiling", done, total))
            model = build_text_model(config.text, binder, lambda done, total: report("loading", done, total))
            resources = {role: reader.resource(role) for role in RESOURCE_ROLES["text"]}
            return ModelInstance(
                path=Path(path),
                name=reader.directory.name or config.text.architecture.value,
                config=config,
                model=model,
                frontend=Frontend(resources, config.text.vocab_size, config.text.architecture is Architecture.MOE),
                parameters=binder.parameter_count(config, ("text",)),
                weight_bytes=sum(stored.bytes for stored in reader.directory.objects),
                load_seconds=time.monotonic() - started,
                compiled=compiled,
                placement=placement,
            )

    def settle(self, options: EngineOptions, planned: bool = True) -> SettledOptions:
        """The options settled for this model and, if `planned` and where that is done, for what the device has left.

        Raises:
            ConfigError: see `options.settle`.
        """
        config, free = self.config.text, self.placement.free_bytes()
        memory = DeviceMemory(config, free) if planned and free is not None else None
        return settle(options, config.max_position_embeddings, image_bytes(config), memory)

    def program(self, options: SettledOptions) -> Program:
        """A Program with its own pools and images, for generation."""
        limits, placement = options.limits, self.placement
        codec = KvCodec(options.kv_dtype.value)
        state = allocate_state(self.config.text, codec, limits.kv_pages, image_slots(limits), placement)
        transfers = Transfers(state, limits.host_images, limits.host_kv_bytes, placement)
        executor = Executor(
            self.model,
            state,
            placement.upload(self._selectable()),
            pages_for(limits.max_context),
            self._recorder(options.cuda_graph),
            placement,
            self._reserved(limits.prefill_chunk),
        )
        return Program(executor, transfers, limits)

    def _recorder(self, graphs: bool) -> Recorder | None:
        """How decode rounds are recorded; None on a CPU whose ops are not all compiled."""
        if self.placement.kind is DeviceKind.CUDA:
            return jit.record if graphs else Repeated.record
        return taped if self.compiled else None

    def _reserved(self, chunk: int) -> int:
        """Workspace to take before the first request, where memory is planned; a CPU takes it when it is needed."""
        return workspace_bytes(self.config.text, chunk, 1) if self.placement.kind is DeviceKind.CUDA else 0

    def window_scorer(self, options: SettledOptions, context: int) -> WindowScorer:
        """The physical side of scoring windows of up to `context` tokens.

        Raises:
            ConfigError: a window does not fit into the device's memory.
        """
        config, pages, codec = self.config.text, pages_for(context), KvCodec(options.kv_dtype.value)
        chunk, free = options.limits.prefill_chunk, self.placement.free_bytes()
        if free is not None:
            curve = memory_curve(config, codec, Shape(0, chunk, pages, IMAGES, HEAD_ROWS))
            require_room(curve, free, pages, "--context or --prefill-chunk")
        state = allocate_state(config, codec, pages, IMAGES, self.placement)
        return WindowScorer(self.model, state, PageStore(PagePool(pages)), chunk, self.placement)

    def _selectable(self) -> torch.Tensor:
        """The bitset of tokens that may ever be chosen."""
        vocab = self.config.text.vocab_size
        return allow_only(set(range(vocab)).difference(self.frontend.unselectable_token_ids()), vocab)


def _compile(kind: DeviceKind, progress: Callable[[int, int], None]) -> bool:
    """Compile what is missing; True if every op has its compiled kernels."""
    if kind is DeviceKind.CUDA:
        jit.warm(progress)
        return True
    return native.prepare(progress) and has_compiled_routes()


def _check_room(placement: Placement, weights: int) -> None:
    """Refuse weights that cannot fit, before hours are spent on reading them."""
    free = placement.free_bytes()
    if free is not None and weights > free:
        raise ConfigError(
            f"--device {placement.name}: the weights take {weights / 2**30:.2f} GiB, the device has "
            f"{free / 2**30:.2f} GiB free; convert with a smaller recipe, or free memory on the device"
        )


def _silent(phase: str, done: int, total: int) -> None:
    pass
