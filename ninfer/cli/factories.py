"""Where the heavy libraries enter: commands obtain engines, scorers and converters here, when they run.

Commands call through the module (`factories.open_engine(...)`), which is the one seam that tests replace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer.types import EngineOptions, Prompt

if TYPE_CHECKING:
    from ninfer.engine import Engine, RenderedPrompt, Scorer

Report = Callable[[str, int, int], None]


def open_engine(model: Path, options: EngineOptions, report: Report) -> Engine:
    """Load a model for generation; `report(stage, done, total)` follows the loading."""
    from ninfer import Engine

    return Engine(model, options, progress=report)


def open_scorer(model: Path, options: EngineOptions, context: int, stride: int) -> Scorer:
    """Load a model for scoring in windows of `context` tokens that advance by `stride`."""
    from ninfer import Scorer

    return Scorer(model, options, context=context, stride=stride)


def render(model: Path, prompt: Prompt, report: Report) -> RenderedPrompt:
    """The text and token ids of a prompt, as the model's own tokenizer and template make them."""
    from ninfer import Engine

    with Engine(model, EngineOptions(), progress=report) as engine:
        return engine.render(prompt)
