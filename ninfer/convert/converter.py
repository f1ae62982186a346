"""One conversion from start to end: open sources, run recipes, plan, check, stream, publish."""

from __future__ import annotations

import enum
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninfer.artifact.planning import DEFAULT_FILE_LIMIT
from ninfer.artifact.writer import ArtifactWriter
from ninfer.convert.pipeline import BLOCK_BYTES, run_conversion
from ninfer.convert.plan import ConversionPlan, plan_conversion
from ninfer.convert.qwen3_5.adapter import load_model
from ninfer.convert.qwen3_5.names import BASE, SourceSet
from ninfer.convert.qwen3_5.tied import check_tied_head
from ninfer.convert.recipe import Recipe, RecipeFunction
from ninfer.convert.recipes import load_recipe
from ninfer.convert.sources.checkpoint import open_checkpoint
from ninfer.convert.sources.tensor_file import TensorReader
from ninfer.errors import ConfigError


class ConvertPhase(enum.Enum):
    """What a conversion is doing."""

    CHECKING = "checking"
    ENCODING = "encoding"
    PUBLISHING = "publishing"


@dataclass(frozen=True, slots=True)
class ConvertProgress:
    """Progress in bytes of source data."""

    phase: ConvertPhase
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """One tensor object: how it was made, and its size before and after (bytes)."""

    id: str
    format: str
    method: str
    shape: tuple[int, ...]
    source_bytes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion did.

    Attributes:
        files: path and size in bytes of every file written, the entry first.
        ignored_fields: config.json fields that nobody interprets. unused_tensors: source tensors left out.
        peak_bytes: the process's peak resident memory so far.
    """

    path: Path
    recipe: str
    components: tuple[str, ...]
    files: tuple[tuple[Path, int], ...]
    objects: tuple[ObjectReport, ...]
    ignored_fields: tuple[str, ...]
    unused_tensors: tuple[str, ...]
    source_bytes: int
    artifact_bytes: int
    seconds: float
    peak_bytes: int


def convert(
    source: Path | str,
    out: Path | str,
    *,
    recipe: str | RecipeFunction = "groupwise",
    overrides: Sequence[str | RecipeFunction] = (),
    components: Sequence[str] | None = None,
    sources: Mapping[str, Path | str] | None = None,
    resources: Mapping[str, Path | str] | None = None,
    proposal: int | None = None,
    proposal_ranking: Path | str | None = None,
    name: str | None = None,
    shard_limit: int = DEFAULT_FILE_LIMIT,
    overwrite: bool = False,
    progress: Callable[[ConvertProgress], None] = lambda progress: None,
    workers: int | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> ConvertReport:
    """Convert a Hugging Face directory to an artifact.

    Args:
        source: the checkpoint directory. out: the entry file to write, NAME.ninfer.
        recipe: a name of `RECIPES`, `FILE.py[:function]`, or a function.
        overrides: more of the same, run after the recipe; a file's default function is then `override`, else `recipe`.
        components: None takes text, and mtp and vision where source and resources have them.
        sources: further checkpoint directories by name: the one a recipe imports from (`encoded`), or a
            component's own (`dflash`, `dflash2`, `mtp`, `vision`).
        resources: files by role that replace or supply those of the directory.
        proposal: rows of a reduced proposal head. proposal_ranking: file of token ids or counts.
        name: the public model name. shard_limit: bytes per file.
        progress: called from this thread. workers, block_bytes: see `run_conversion`.

    Raises:
        ConfigError: anything wrong with source, recipe or options. ArtifactError: target or disk. Nothing is
            left behind in either case, nor after KeyboardInterrupt.
    """
    started = time.perf_counter()
    directories = {BASE: Path(source), **{key: Path(path) for key, path in (sources or {}).items()}}
    files = {role: Path(path) for role, path in (resources or {}).items()}
    ranking = None if proposal_ranking is None else Path(proposal_ranking)
    if ranking is not None and proposal is None:
        raise ConfigError("--proposal-ranking: needs --proposal")
    names = [_label(item) for item in (recipe, *overrides)]
    functions = [_function(recipe, "recipe"), *(_function(item, "override", "recipe") for item in overrides)]
    with TensorReader() as reader:
        progress(ConvertProgress(ConvertPhase.CHECKING, 0, 0))
        checkpoints = {key: open_checkpoint(path, key) for key, path in directories.items()}
        model = load_model(SourceSet(checkpoints, reader), components, files, proposal, ranking)
        statements = Recipe(model.config, model.parameters, model.groups, checkpoints)
        for function in functions:
            function(statements)
        plan = plan_conversion(model, statements, names, name)
        check_tied_head(model.sources, model.config, reader)
        with ArtifactWriter(Path(out), plan.directory, shard_limit, overwrite) as writer:
            total = plan.source_bytes

            def encoded(done: int) -> None:
                progress(ConvertProgress(ConvertPhase.ENCODING, done, total))

            encoded(0)
            run_conversion(plan, writer, reader, workers=workers, block_bytes=block_bytes, progress=encoded)
            progress(ConvertProgress(ConvertPhase.PUBLISHING, total, total))
            writer.commit()
    paths = tuple(writer.path.with_name(file.path or writer.path.name) for file in writer.directory.files)
    sizes = tuple((path, path.stat().st_size) for path in paths)
    return ConvertReport(
        path=writer.path,
        recipe=names[0],
        components=model.config.components,
        files=sizes,
        objects=_objects(plan),
        ignored_fields=model.ignored_fields,
        unused_tensors=model.unused_tensors,
        source_bytes=total,
        artifact_bytes=sum(size for _, size in sizes),
        seconds=time.perf_counter() - started,
        peak_bytes=_peak_bytes(),
    )


def _function(item: str | RecipeFunction, *defaults: str) -> RecipeFunction:
    return load_recipe(item, defaults) if isinstance(item, str) else item


def _label(item: str | RecipeFunction) -> str:
    """How provenance calls a recipe: its name, or its file without the folder."""
    return Path(item).name if isinstance(item, str) else getattr(item, "__name__", type(item).__name__)


def _objects(plan: ConversionPlan) -> tuple[ObjectReport, ...]:
    return tuple(
        ObjectReport(
            tensor.id,
            tensor.format.value,
            tensor.method.name,
            tensor.shape,
            tensor.source_bytes,
            tensor.geometry.total_bytes,
        )
        for tensor in plan.tensors
    )


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
