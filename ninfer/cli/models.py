"""Which model a command works on: argument, `--model`, NINFER_MODEL, or the demo model of the package."""

from __future__ import annotations

import os
from pathlib import Path

from ninfer.cli.failures import CommandError, UsageMistake
from ninfer.cli.flags import ModelFlags
from ninfer.cli.outputs import say

MODEL_VARIABLE = "NINFER_MODEL"


def model_of(flags: ModelFlags) -> Path:
    """The model named by argument or option, or the next in line."""
    if flags.model is not None and flags.model_option is not None:
        raise UsageMistake("the model is named twice, as an argument and by --model: drop one")
    return choose_model(flags.model if flags.model is not None else flags.model_option)


def choose_model(named: str | None) -> Path:
    """The named model, else NINFER_MODEL, else the demo model, said on stderr. Raises CommandError."""
    if named is not None:
        return _existing(Path(named), "MODEL")
    variable = os.environ.get(MODEL_VARIABLE)
    if variable:
        return _existing(Path(variable), MODEL_VARIABLE)
    demo = demo_model()
    if not demo.is_file():
        raise CommandError(f"no model: name a .ninfer file (MODEL or --model) or set {MODEL_VARIABLE}")
    say(f"using the demo model that ships with ninfer (name a MODEL or set {MODEL_VARIABLE} for another)")
    return demo


def demo_model() -> Path:
    """Where the demo artifact lies in an installed package; it may be absent."""
    return Path(__file__).parents[1] / "data" / "demo.ninfer"


def _existing(path: Path, source: str) -> Path:
    if not str(path).strip() or not path.exists():
        raise CommandError(f"{source}: no such file: {path or repr(str(path))}: name an existing .ninfer file")
    if not path.is_dir():
        return path
    if (path / "config.json").is_file():
        raise CommandError(f"{path} is a checkpoint folder: convert it first, with `ninfer convert {path} OUT.ninfer`")
    raise CommandError(f"{path} is a directory: name the .ninfer file in it")
