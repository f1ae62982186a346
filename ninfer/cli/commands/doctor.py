"""`ninfer doctor`: what this machine and installation can do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ninfer.cli.outputs import print_json, table_console

if TYPE_CHECKING:
    from rich.table import Table

    from ninfer.cli.machine import CompiledKernels, Machine


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Report on this machine: processor, memory, compiler and kernels, GPU, libraries, and what can run here."""
    from ninfer.cli.machine import examine

    machine = examine()
    if json:
        print_json(asdict(machine))
        return
    console = table_console()
    console.print(_machine_table(machine))
    console.print(_library_table(machine))
    console.print(_cuda_table(machine))
    console.print(_device_table(machine))


def _machine_table(machine: Machine) -> Table:
    table = _table("machine")
    table.add_row("system", machine.system)
    table.add_row("processor", machine.cpu.model)
    table.add_row("features", ", ".join(machine.cpu.features) or "none of those that ninfer looks for")
    table.add_row("cores", f"{machine.cpu.physical_cores} physical, {machine.cpu.logical_cores} logical")
    table.add_row("memory", _memory(machine))
    table.add_row("C++ compiler", machine.compiler or "none found")
    table.add_row("compiled kernels", _kernels(machine.kernels))
    table.add_row("GPU", ", ".join(machine.gpus) or "none found")
    table.add_row("demo model", machine.demo_model or "not in this installation")
    return table


def _kernels(kernels: CompiledKernels) -> str:
    if kernels.body is None:
        return f"none: {kernels.reason}"
    return f"{kernels.body}, compiled by {kernels.compiler}, kept in {kernels.cache}"


def _memory(machine: Machine) -> str:
    if machine.memory is None:
        return "unknown"
    return f"{machine.memory.total_bytes / 2**30:.1f} GiB, {machine.memory.available_bytes / 2**30:.1f} GiB available"


def _library_table(machine: Machine) -> Table:
    table = _table("software")
    table.add_row("python", machine.python)
    for name, version in machine.libraries.items():
        table.add_row(name, version or "not installed")
    return table


def _cuda_table(machine: Machine) -> Table:
    table = _table("CUDA")
    for part in machine.cuda:
        table.add_row(part.name, "; ".join(filter(None, (part.found, part.remedy))) or "not looked for")
    return table


def _device_table(machine: Machine) -> Table:
    table = _table("devices")
    for device in machine.devices:
        table.add_row(device.name, f"{'can run' if device.usable else 'cannot run'}: {device.reason}")
    return table


def _table(title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    return table
