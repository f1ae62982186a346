"""ninfer: exact, fast local inference for Qwen3.5-family hybrid models.

The public names load on first use, so that `import ninfer` costs nothing and needs no tensor library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ninfer.engine import Engine, Scorer
    from ninfer.errors import NinferError
    from ninfer.types import (
        ChatPrompt,
        EngineOptions,
        GenerationRequest,
        GenerationResult,
        Message,
        Sampling,
        StopConditions,
    )

__version__ = "0.1.0"

__all__ = [
    "ChatPrompt",
    "Engine",
    "EngineOptions",
    "GenerationRequest",
    "GenerationResult",
    "Message",
    "NinferError",
    "Sampling",
    "Scorer",
    "StopConditions",
]

_HOMES = {
    "ChatPrompt": "ninfer.types",
    "Engine": "ninfer.engine",
    "EngineOptions": "ninfer.types",
    "GenerationRequest": "ninfer.types",
    "GenerationResult": "ninfer.types",
    "Message": "ninfer.types",
    "NinferError": "ninfer.errors",
    "Sampling": "ninfer.types",
    "Scorer": "ninfer.engine",
    "StopConditions": "ninfer.types",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ninfer' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
