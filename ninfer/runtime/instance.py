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
from ninfer.frontend import Frontend
from ninfer.kernels import has_compiled_routes, native
from ninfer.kernels.kv_cache import KvCodec
from ninfer.kernels.sampling import allow_only
from ninfer.models.qwen3_5.binding import Binder, read_config
from ninfer.models.qwen3_5.config import Architecture, ModelConfig
from ninfer.models.qwen3_5.inventory import RESOURCE_ROLES
from ninfer.models.qwen3_5.parameters import build_text_model
from ninfer.models.qwen3_5.state import allocate_state
from ninfer.models.qwen3_5.text import TextModel
from ninfer.runtime.options import SettledOptions
from ninfer.runtime.program.pages import PagePool, PageStore, pages_for
from ninfer.runtime.program.program import Program
from ninfer.runtime.program.scoring import IMAGES, WindowScorer
from ninfer.runtime.program.stores import image_slots
from ninfer.runtime.program.transfers import Transfers
from ninfer.runtime.program.units import Executor

Progress = Callable[[str, int, int], None]
"""(phase, done, total), called while something takes long."""


@dataclass(frozen=True, slots=True)
class ModelInstance:
    """One resident model: read-only weights and resources. Holds no request state.

    `compiled` says that every op has its compiled kernels here.
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

    @staticmethod
    def open(path: str | os.PathLike[str], progress: Progress | None = None) -> ModelInstance:
        """Open, check and prepare the artifact at `path`.

        Raises:
            ArtifactError: a missing, malformed or inconsistent file set.
            ConfigError: a config or format that cannot be run.
        """
        started, report = time.monotonic(), progress or _silent
        with collector_paused(), ArtifactReader.open(Path(path)) as reader:
            where = str(path)
            config = read_config(reader.directory, where)
            binder = Binder(reader, where)
            binder.check(config, ("text",))
            compiled = native.prepare(lambda done, total: report("compiling", done, total)) and has_compiled_routes()
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
            )

    def program(self, options: SettledOptions) -> Program:
        """A Program with its own pools and images, for generation."""
        limits = options.limits
        codec = KvCodec(options.kv_dtype.value)
        state = allocate_state(self.config.text, codec, limits.kv_pages, image_slots(limits))
        transfers = Transfers(state, limits.host_images, limits.host_kv_bytes)
        pages = pages_for(limits.max_context)
        executor = Executor(self.model, state, self._selectable(), pages, self.compiled)
        return Program(executor, transfers, limits)

    def window_scorer(self, options: SettledOptions, context: int) -> WindowScorer:
        """The physical side of scoring windows of up to `context` tokens."""
        pages = pages_for(context)
        state = allocate_state(self.config.text, KvCodec(options.kv_dtype.value), pages, IMAGES)
        return WindowScorer(self.model, state, PageStore(PagePool(pages)), options.limits.prefill_chunk)

    def _selectable(self) -> torch.Tensor:
        """The bitset of tokens that may ever be chosen."""
        vocab = self.config.text.vocab_size
        return allow_only(set(range(vocab)).difference(self.frontend.unselectable_token_ids()), vocab)


def _silent(phase: str, done: int, total: int) -> None:
    pass
