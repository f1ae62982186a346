"""Where the heavy libraries enter: commands obtain engines, scorers and converters here, when they run.

Commands call through the module (`factories.open_engine(...)`), which is the one seam that tests replace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninfer.types import EngineOptions, Prompt

if TYPE_CHECKING:
    from ninfer.cli.machine import CompiledKernels, CudaPart
    from ninfer.convert import ConvertProgress, ConvertReport
    from ninfer.engine import Engine, RenderedPrompt, Scorer

Report = Callable[[str, int, int], None]


def open_engine(model: Path, options: EngineOptions, report: Report) -> Engine:
    """Load a model for generation; `report(stage, done, total)` follows the loading."""
    from ninfer import Engine

    return Engine(model, options, progress=report)


def open_scorer(model: Path, options: EngineOptions, context: int, stride: int, report: Report) -> Scorer:
    """Load a model for scoring in windows of `context` tokens that advance by `stride`."""
    from ninfer import Scorer

    return Scorer(model, options, context=context, stride=stride, progress=report)


def render(model: Path, prompt: Prompt) -> RenderedPrompt:
    """The text and token ids of a prompt, from the model's tokenizer and template; the weights stay unread."""
    from ninfer.artifact.reader import ArtifactReader
    from ninfer.engine import RenderedPrompt
    from ninfer.frontend.frontend import Frontend
    from ninfer.models.qwen3_5.binding import read_config
    from ninfer.models.qwen3_5.inventory import RESOURCE_ROLES

    with ArtifactReader.open(model) as reader:
        config = read_config(reader.directory, str(model))
        resources = {role: reader.resource(role) for role in RESOURCE_ROLES["text"]}
    prepared = Frontend(resources, config.text.vocab_size).prepare(prompt)
    return RenderedPrompt(prepared.text, prepared.token_ids)


def convert(
    source: Path, out: Path, progress: Callable[[ConvertProgress], None], settings: Mapping[str, Any]
) -> ConvertReport:
    """Convert a checkpoint; `settings` are keyword arguments of `ninfer.convert.convert`."""
    from ninfer.convert import convert

    return convert(source, out, progress=progress, **settings)


def compiled_kernels() -> CompiledKernels:
    """Compile and load what every kernel runs on, and say what came of it."""
    from ninfer.cli.machine import CompiledKernels

    try:
        from ninfer.kernels import native
    except ImportError as error:
        return CompiledKernels(None, None, None, f"{error.name} is not installed")
    body = compiler = cache = None
    try:
        compiler, cache = " ".join(native.compiler()), str(native.cache_dir())
        body = native.best_body().value
    except native.BuildError as error:
        return CompiledKernels(None, compiler, cache, str(error))
    return CompiledKernels(body, compiler, cache, None)


def cuda_parts() -> tuple[CudaPart, ...]:
    """What CUDA needs on this machine, and what of it is missing. CuPy is looked for and not loaded."""
    from ninfer.cli.machine import CudaPart

    try:
        from ninfer.kernels.jit.parts import parts
    except ImportError as error:
        return (CudaPart(error.name or "torch", None, f"{error.name} is not installed"),)
    return tuple(CudaPart(part.name, part.found, part.remedy) for part in parts())
