"""`ninfer inspect`: what an artifact holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ninfer.cli.failures import CommandError
from ninfer.cli.flags import ModelFlags
from ninfer.cli.models import model_of
from ninfer.cli.outputs import print_json, say, table_console
from ninfer.cli.progress import ProgressBar, ProgressUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ninfer.artifact.directory import StoredObject
    from ninfer.artifact.reader import ArtifactReader
    from ninfer.artifact.summary import Share, Summary
    from ninfer.artifact.verify import VerifyReport


def inspect(
    model: ModelFlags,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every stored object.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read everything and check every code and scale.")] = False,
) -> None:
    """Show what an artifact holds, and with --verify whether it is intact."""
    from ninfer.artifact.reader import ArtifactReader
    from ninfer.artifact.summary import summarise

    path = model_of(model)
    with ArtifactReader.open(path) as reader:
        summary = summarise(reader.directory)
        report = _verify(reader) if verify else None
        if json:
            print_json(_inspect_json(reader, summary, tensors, report))
        else:
            _print_tables(reader, summary, tensors)
        _refuse(reader.part_problems() if report is None else report.problems, str(path))
    if report is not None and not json:
        say(f"verified: {report.tensors} tensors and {report.resources} resources, {report.bytes_checked:,} bytes")


def _verify(reader: ArtifactReader) -> VerifyReport:
    from ninfer.artifact.verify import verify

    with ProgressBar(ProgressUnit.BYTES) as bar:
        return verify(reader, lambda done, total: bar.report("verifying", done, total))


def _refuse(problems: Sequence[str], path: str) -> None:
    """One line per problem on stderr; an artifact with problems makes the command fail."""
    for problem in problems:
        say(f"problem: {problem}")
    if problems:
        raise CommandError(f"{path}: {len(problems)} problem(s) found: copy or convert the file again")


def _inspect_json(
    reader: ArtifactReader, summary: Summary, tensors: bool, report: VerifyReport | None
) -> dict[str, object]:
    directory = reader.directory
    result: dict[str, object] = {
        "path": str(reader.path),
        "name": summary.name,
        "artifact_id": reader.artifact_id.hex(),
        "files": [
            {"path": str(path), "payload_bytes": file.payload_bytes}
            for path, file in zip(reader.paths, directory.files, strict=True)
        ],
        "parameters": summary.parameters,
        "uses": summary.uses,
        "total": _share_json(summary.total),
        "formats": [_share_json(share) for share in summary.formats],
        "components": {
            component.total.name: _share_json(component.total)
            | {"formats": [_share_json(share) for share in component.formats]}
            for component in summary.components
        },
        "configs": {name: dict(component.config) for name, component in directory.components.items()},
        "metadata": None if directory.metadata is None else dict(directory.metadata),
        "provenance": None if directory.provenance is None else dict(directory.provenance),
    }
    if tensors:
        result["objects"] = [_object_json(stored) for stored in directory.objects]
    if report is not None:
        result["verify"] = asdict(report) | {"ok": report.ok}
    return result


def _share_json(share: Share) -> dict[str, object]:
    return asdict(share) | {"bits_per_weight": share.bits_per_weight}


def _object_json(stored: StoredObject) -> dict[str, object]:
    from ninfer.artifact.directory import ResourceObject

    kind = "resource" if isinstance(stored, ResourceObject) else "tensor"
    return {"kind": kind} | asdict(stored)


def _print_tables(reader: ArtifactReader, summary: Summary, tensors: bool) -> None:
    console = table_console()
    console.print(_facts_table(reader, summary))
    console.print(_size_table(summary))
    if tensors:
        console.print(_object_table(reader.directory.objects))


def _facts_table(reader: ArtifactReader, summary: Summary) -> Table:
    from rich.table import Table

    table = Table(title=str(reader.path), title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", overflow="fold")
    table.add_row("name", summary.name or "(none)")
    table.add_row("components", ", ".join(reader.directory.components))
    table.add_row("files", f"{summary.files}, {summary.file_payload_bytes:,} payload bytes")
    table.add_row("parameters", f"{summary.parameters:,} bound, {summary.uses:,} uses")
    table.add_row("elements", f"{summary.total.elements:,}")
    table.add_row("artifact id", reader.artifact_id.hex())
    return table


def _size_table(summary: Summary) -> Table:
    from rich.table import Table

    table = Table(title="size by component and format", title_justify="left")
    table.add_column("component")
    table.add_column("format")
    for name in ("objects", "elements", "bytes", "bits/weight"):
        table.add_column(name, justify="right")
    for component in summary.components:
        for share in component.formats:
            table.add_row(component.total.name, share.name, *_cells(share))
        table.add_row(component.total.name, "all", *_cells(component.total), end_section=True)
    table.add_row("total", "", *_cells(summary.total))
    return table


def _cells(share: Share) -> tuple[str, str, str, str]:
    bits = share.bits_per_weight
    return f"{share.objects:,}", f"{share.elements:,}", f"{share.bytes:,}", "–" if bits is None else f"{bits:.3f}"


def _object_table(objects: Sequence[StoredObject]) -> Table:
    from rich.table import Table

    table = Table(title="objects, in file order", title_justify="left")
    table.add_column("id", overflow="fold")
    for name in ("shape", "format", "layout"):
        table.add_column(name)
    for name in ("offset", "bytes"):
        table.add_column(name, justify="right")
    for stored in objects:
        table.add_row(stored.id, *_description(stored), f"{stored.offset:,}", f"{stored.bytes:,}")
    return table


def _description(stored: StoredObject) -> tuple[str, str, str]:
    """Shape, format and layout, as cells."""
    from ninfer.artifact.directory import ResourceObject

    if isinstance(stored, ResourceObject):
        return "–", "resource", stored.encoding
    return "×".join(map(str, stored.shape)) or "scalar", stored.format, stored.layout
