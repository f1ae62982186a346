"""The recipes that ship with ninfer, by name, and the loading of a user's recipe files."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from ninfer.convert.recipe import RecipeFunction
from ninfer.convert.recipes import official, uniform
from ninfer.errors import ConfigError

RECIPES: Mapping[str, RecipeFunction] = {
    "bf16": uniform.bf16,
    "q8": uniform.q8,
    "q4": uniform.q4,
    "fp8": uniform.fp8,
    "q8-cpu": uniform.q8_cpu,
    "q4-cpu": uniform.q4_cpu,
    "groupwise": official.groupwise,
    "qwen3_6_27b": official.qwen3_6_27b,
    "qwen3_8_27b": official.qwen3_8_27b,
    "qwen3_6_35b_a3b": official.qwen3_6_35b_a3b,
    "qwen3_6_27b_nvfp4": official.qwen3_6_27b_nvfp4,
    "qwen3_8_27b_nvfp4": official.qwen3_8_27b_nvfp4,
}


def load_recipe(name: str, default_functions: Sequence[str] = ("recipe",)) -> RecipeFunction:
    """A recipe by name, or from `FILE.py[:function]`.

    Raises:
        ConfigError: unknown name, missing file, a file that fails to run, or no such function in it.
    """
    if name in RECIPES:
        return RECIPES[name]
    file, _, function = name.partition(".py:")
    if not name.endswith(".py") and not function:
        raise ConfigError(f"unknown recipe {name!r}; expected one of {', '.join(RECIPES)} or FILE.py[:function]")
    path = Path(f"{file}.py" if function else name)
    if not path.is_file():
        raise ConfigError(f"{path}: recipe file is missing")
    wanted = (function,) if function else tuple(default_functions)
    module = _run(path)
    found = next((value for value in (getattr(module, item, None) for item in wanted) if callable(value)), None)
    if found is None:
        names = " or ".join(repr(item) for item in wanted)
        raise ConfigError(f"{path}: defines no function {names}; name one with {path}:FUNCTION")
    result: RecipeFunction = found
    return result


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ninfer_recipe_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path}: recipe file failed: {type(error).__name__}: {error}") from error
    return module
