"""`ninfer convert`: a Hugging Face checkpoint becomes an artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ninfer.cli import factories
from ninfer.cli.failures import CommandError, UsageMistake
from ninfer.cli.outputs import print_json, say, table_console
from ninfer.cli.progress import ProgressBar, ProgressUnit

if TYPE_CHECKING:
    from rich.table import Table

    from ninfer.convert import ConvertProgress, ConvertReport, ObjectReport

DEFAULT_PROPOSAL_ROWS = 32768
SHOWN_NAMES = 8


@dataclass(frozen=True, slots=True)
class RecipeFlags:
    """What is converted, and into which formats."""

    recipe: Annotated[
        str, typer.Option("--recipe", metavar="NAME|FILE.py[:FUNCTION]", help="Formats and methods of all parameters.")
    ] = "groupwise"
    override: Annotated[
        list[str] | None,
        typer.Option("--override", metavar="FILE.py[:FUNCTION]", help="Statements after the recipe (repeatable)."),
    ] = None
    components: Annotated[
        str | None,
        typer.Option(
            "--components", metavar="NAMES", help="For example text,mtp.", show_default="what the checkpoint has"
        ),
    ] = None
    source: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="NAME=PATH", help="A further checkpoint folder (repeatable)."),
    ] = None
    resource: Annotated[
        list[str] | None,
        typer.Option("--resource", metavar="ROLE=FILE", help="A file instead of the checkpoint's (repeatable)."),
    ] = None
    proposal: Annotated[
        int | None,
        typer.Option("--proposal", metavar="[ROWS]", min=1, help="Add a reduced draft head.", show_default=False),
    ] = None
    proposal_ranking: Annotated[
        Path | None,
        typer.Option(
            "--proposal-ranking", metavar="FILE", help="Token ids or counts, for --proposal.", show_default=False
        ),
    ] = None


def convert(
    hf_dir: Annotated[Path, typer.Argument(metavar="HF_DIR", help="A Hugging Face checkpoint folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.ninfer", help="The file to write.")],
    recipe: RecipeFlags,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="The public name.", show_default=False)
    ] = None,
    shard_limit: Annotated[
        int | None, typer.Option("--shard-limit", metavar="BYTES", min=1, help="Bytes per file.", show_default="32e9")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Convert a Hugging Face checkpoint folder to a .ninfer artifact."""
    settings: dict[str, object] = {
        "recipe": recipe.recipe,
        "overrides": tuple(recipe.override or ()),
        "components": _components(recipe.components),
        "sources": _pairs(recipe.source or (), "--source"),
        "resources": _pairs(recipe.resource or (), "--resource"),
        "proposal": recipe.proposal,
        "proposal_ranking": recipe.proposal_ranking,
        "name": name,
        "overwrite": overwrite,
    }
    if shard_limit is not None:
        settings["shard_limit"] = shard_limit
    if out.exists() and not overwrite:
        raise CommandError(f"{out}: the file exists: choose another name or give --overwrite")
    with ProgressBar(ProgressUnit.BYTES) as bar:

        def progress(now: ConvertProgress) -> None:
            bar.report(now.phase.value, now.done, now.total)

        report = factories.convert(hf_dir, out, progress, settings)
    if json:
        print_json(_report_json(report))
    else:
        _print_report(report)


def with_proposal_rows(arguments: Sequence[str]) -> list[str]:
    """`--proposal` takes an optional number, which Typer cannot say: a bare one gets the default rows."""
    rows = str(DEFAULT_PROPOSAL_ROWS)
    result = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        result.append(argument)
        if argument == "--proposal" and not following.lstrip("-").isdigit():
            result.append(rows)
    return result


def _components(names: str | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    parts = tuple(part.strip() for part in names.split(","))
    if not all(parts):
        raise UsageMistake(f"--components {names!r} holds an empty name: separate names by single commas")
    return parts


def _pairs(values: Sequence[str], flag: str) -> Mapping[str, Path]:
    pairs: dict[str, Path] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise UsageMistake(f"{flag} {value!r} is not of the form NAME=PATH")
        if name in pairs:
            raise UsageMistake(f"{flag} names {name!r} twice")
        pairs[name] = Path(path)
    return pairs


def _report_json(report: ConvertReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "recipe": report.recipe,
        "components": list(report.components),
        "files": [{"path": str(path), "bytes": size} for path, size in report.files],
        "objects": [asdict(item) for item in report.objects],
        "ignored_fields": list(report.ignored_fields),
        "unused_tensors": list(report.unused_tensors),
        "source_bytes": report.source_bytes,
        "artifact_bytes": report.artifact_bytes,
        "seconds": report.seconds,
        "peak_bytes": report.peak_bytes,
    }


def _print_report(report: ConvertReport) -> None:
    console = table_console()
    console.print(_facts_table(report))
    console.print(_format_table(report.objects))
    for what, names in (("config fields", report.ignored_fields), ("source tensors", report.unused_tensors)):
        if names:
            more = f", … {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
            say(f"{len(names)} {what} not used: {', '.join(names[:SHOWN_NAMES])}{more}")


def _facts_table(report: ConvertReport) -> Table:
    from rich.table import Table

    speed = report.source_bytes / max(report.seconds, 1e-9) / 1e6
    table = Table(title=str(report.path), title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", overflow="fold")
    table.add_row("recipe", report.recipe)
    table.add_row("components", ", ".join(report.components))
    table.add_row("files", f"{len(report.files)}, {report.artifact_bytes:,} bytes")
    table.add_row("source", f"{report.source_bytes:,} bytes")
    table.add_row("time", f"{report.seconds:.1f} s, {speed:,.0f} MB/s")
    table.add_row("peak memory", f"{report.peak_bytes / 2**20:,.0f} MiB")
    return table


def _format_table(objects: Sequence[ObjectReport]) -> Table:
    from rich.table import Table

    table = Table(title="tensors by format and method", title_justify="left")
    table.add_column("format")
    table.add_column("method")
    for name in ("tensors", "source bytes", "bytes", "ratio"):
        table.add_column(name, justify="right")
    for format_name, method in sorted({(item.format, item.method) for item in objects}):
        group = [item for item in objects if (item.format, item.method) == (format_name, method)]
        before, after = sum(item.source_bytes for item in group), sum(item.bytes for item in group)
        ratio = f"{after / before:.3f}" if before else "–"
        table.add_row(format_name, method, f"{len(group)}", f"{before:,}", f"{after:,}", ratio)
    return table
