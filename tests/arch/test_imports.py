"""Who may import whom (ARCHITECTURE: import rules), read off the syntax trees of every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "ninfer"
STDLIB = sys.stdlib_module_names


@dataclass(frozen=True)
class Import:
    """One imported module, as a dotted name, and whether only the type checker sees it."""

    importer: str
    target: str
    typing_only: bool


def modules() -> dict[str, Path]:
    """Dotted name → file of every module of the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("ninfer", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_of(name: str) -> Iterator[Import]:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        for target in targets(node):
            yield Import(name, target, id(node) in typing_only)


def targets(node: ast.AST) -> list[str]:
    """Full module names: `from ninfer.kernels import argmax` imports `ninfer.kernels.argmax` where that is a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide who imports whom"
        base = node.module or ""
        return [full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names]
    return []


ALL_IMPORTS = [found for name in MODULES for found in imports_of(name)]

ERRORS, TYPES = "ninfer.errors", "ninfer.types"
FORMATS = ("ninfer.artifact.formats", "ninfer.artifact.layouts")
CONFIG = "ninfer.models.qwen3_5.config"
INVENTORY = "ninfer.models.qwen3_5.inventory"
PUBLIC = ("ninfer", "ninfer.engine", ERRORS, TYPES)
TENSORS = ("torch", "numpy", "cupy", "cuda")
MODEL_FACTS = (CONFIG, f"{CONFIG}_*", INVENTORY, f"{INVENTORY}_*")


@dataclass(frozen=True)
class Room:
    """What one room may import: libraries, and `ninfer` modules (a package means its modules, `*` ends a prefix)."""

    prefix: str
    ninfer: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


# The first room whose prefix fits a module is its room.
ROOMS = (
    Room(ERRORS),
    Room(TYPES),
    Room("ninfer.artifact", (ERRORS, TYPES), ("numpy",)),
    Room("ninfer.convert", (ERRORS, TYPES, "ninfer.artifact", *MODEL_FACTS), ("numpy", "safetensors", "tokenizers")),
    Room(CONFIG + "*", (ERRORS, TYPES, *FORMATS, "ninfer.artifact.json_strict", f"{CONFIG}*")),
    Room(INVENTORY + "*", (ERRORS, TYPES, *FORMATS, *MODEL_FACTS)),
    Room("ninfer.models.qwen3_5.config_fields", (ERRORS, TYPES, *FORMATS)),
    Room("ninfer.models", (ERRORS, TYPES, "ninfer.artifact", "ninfer.kernels", "ninfer.models"), ("torch", "numpy")),
    # What compiles and launches kernels knows no op; CuPy is one module's affair.
    Room("ninfer.kernels.jit.driver", (ERRORS, "ninfer.kernels.jit"), ("torch", "cupy_backends")),
    Room("ninfer.kernels.jit", (ERRORS, "ninfer.kernels.native.build"), ("torch",)),
    Room(
        "ninfer.kernels",
        (ERRORS, TYPES, *FORMATS, "ninfer.artifact.codec", "ninfer.artifact.floats", "ninfer.kernels"),
        ("torch", "numpy"),
    ),
    Room("ninfer.frontend", (ERRORS, TYPES), ("tokenizers", "jinja2", "numpy", "PIL", "regex")),
    Room("ninfer.runtime.core", (ERRORS, TYPES, "ninfer.runtime.core")),
    Room(
        "ninfer.runtime.program",
        (ERRORS, TYPES, "ninfer.runtime.core", "ninfer.models", "ninfer.kernels", "ninfer.artifact"),
        ("torch", "numpy"),
    ),
    Room("ninfer.prompt_input", PUBLIC),
    Room("ninfer.bench", (*PUBLIC, "ninfer.prompt_input"), ("rich", "matplotlib")),
    Room(
        "ninfer.cli",
        (*PUBLIC, "ninfer.artifact", "ninfer.convert", "ninfer.bench", "ninfer.prompt_input", "ninfer.runtime.scoring"),
        ("typer", "rich"),
    ),
)
FACTORIES = "ninfer.cli.factories"
ABOVE = ("ninfer.cli", "ninfer.serve", "ninfer.bench", "ninfer.service")


def fits(module: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return module.startswith(pattern[:-1])
    return module == pattern or (pattern != "ninfer" and module.startswith(pattern + "."))


def room_of(module: str) -> Room | None:
    return next((room for room in ROOMS if fits(module, room.prefix)), None)


def allowed(found: Import) -> bool:
    room = room_of(found.importer)
    # Instances are put together in one place of the command line, which may therefore see everything below it.
    if room is None or found.importer == FACTORIES or found.target.partition(".")[0] in STDLIB:
        return True
    if found.target.partition(".")[0] != "ninfer":
        return found.target.partition(".")[0] in room.libraries
    own = fits(found.target, room.prefix)
    return own or found.target == "ninfer" or any(fits(found.target, pattern) for pattern in room.ninfer)


def is_command_line(module: str) -> bool:
    """The commands, and the module by which `python -m ninfer` reaches them."""
    return fits(module, "ninfer.cli") or module == "ninfer.__main__"


def test_every_room_keeps_to_its_neighbours() -> None:
    offences = sorted({f"{item.importer} imports {item.target}" for item in ALL_IMPORTS if not allowed(item)})
    assert offences == []


def test_nobody_imports_the_command_line_but_itself() -> None:
    offenders = {item.importer for item in ALL_IMPORTS if fits(item.target, "ninfer.cli")}
    assert {name for name in offenders if not is_command_line(name)} == set()


def test_only_the_command_line_imports_what_stands_above_the_engine() -> None:
    for item in ALL_IMPORTS:
        target = next((room for room in ABOVE if fits(item.target, room)), None)
        if target is not None and not fits(item.importer, target):
            assert is_command_line(item.importer), f"{item.importer} imports {item.target}"


@pytest.mark.parametrize("name", [name for name in MODULES if fits(name, "ninfer.runtime.core")])
def test_the_control_plane_is_pure(name: str) -> None:
    for item in imports_of(name):
        assert item.target.partition(".")[0] in STDLIB | {"ninfer"}


def test_kernel_oracles_import_no_sibling() -> None:
    for name in MODULES:
        if name.startswith("ninfer.kernels.") and name.endswith(".oracle"):
            siblings = {item.target for item in imports_of(name) if fits(item.target, name.rpartition(".")[0])}
            assert siblings == set(), name


def test_cupy_enters_through_one_door() -> None:
    doors = {item.importer for item in ALL_IMPORTS if item.target.partition(".")[0] in ("cupy", "cupy_backends")}
    assert doors == {"ninfer.kernels.jit.driver"}


def test_cupy_is_loaded_when_a_gpu_is_opened() -> None:
    for node in ast.parse(MODULES["ninfer.kernels.jit.driver"].read_text(encoding="utf-8")).body:
        assert not any(target.startswith("cupy") for target in targets(node))


def test_commands_load_libraries_only_when_they_run() -> None:
    """Module-level imports of the command line and of what it imports so: standard library, Typer and plain values."""
    for name in MODULES:
        if not fits(name, "ninfer.cli"):
            continue
        for node in ast.parse(MODULES[name].read_text(encoding="utf-8")).body:
            for target in targets(node):
                head = target.partition(".")[0]
                light = head in STDLIB | {"typer"} or any(
                    fits(target, room) for room in ("ninfer.cli", ERRORS, TYPES, "ninfer.prompt_input")
                )
                assert light or target == "ninfer", f"{name} imports {target} when it is loaded"


def test_files_stay_readable() -> None:
    long = {name: lines for name, path in MODULES.items() if (lines := len(path.read_text().splitlines())) > 450}
    assert long == {}


def test_the_package_speaks_of_no_machine() -> None:
    """No absolute paths of the place where it was written."""
    for name, path in MODULES.items():
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not any(place in line for place in ("/work/", "/root/", "/home/")), f"{name}: {line}"
