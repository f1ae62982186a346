"""ninfer: exact, fast local inference for Qwen3.5-family hybrid models.

The public names load on first use, so that `import ninfer` costs nothing and needs no tensor library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ninfer.collector import collector_paused

if TYPE_CHECKING:
    from ninfer.engine import Engine, Scorer
    from ninfer.errors import NinferError, RequestError
    from ninfer.types import (
        CacheUse,
        Channel,
        ChatPrompt,
        Delta,
        EngineOptions,
        Finish,
        FinishReason,
        GenerationRequest,
        GenerationResult,
        GenerationStart,
        KvDtype,
        Message,
        Sampling,
        StopConditions,
        TextPrompt,
        TokenPrompt,
        Tool,
        ToolCallDelta,
    )

__version__ = "0.1.0"

__all__ = [
    "CacheUse",
    "Channel",
    "ChatPrompt",
    "Delta",
    "Engine",
    "EngineOptions",
    "Finish",
    "FinishReason",
    "GenerationRequest",
    "GenerationResult",
    "GenerationStart",
    "KvDtype",
    "Message",
    "NinferError",
    "RequestError",
    "Sampling",
    "Scorer",
    "StopConditions",
    "TextPrompt",
    "TokenPrompt",
    "Tool",
    "ToolCallDelta",
]

_HOMES = {
    "CacheUse": "ninfer.types",
    "Channel": "ninfer.types",
    "ChatPrompt": "ninfer.types",
    "Delta": "ninfer.types",
    "Engine": "ninfer.engine",
    "EngineOptions": "ninfer.types",
    "Finish": "ninfer.types",
    "FinishReason": "ninfer.types",
    "GenerationRequest": "ninfer.types",
    "GenerationResult": "ninfer.types",
    "GenerationStart": "ninfer.types",
    "KvDtype": "ninfer.types",
    "Message": "ninfer.types",
    "NinferError": "ninfer.errors",
    "RequestError": "ninfer.errors",
    "Sampling": "ninfer.types",
    "Scorer": "ninfer.engine",
    "StopConditions": "ninfer.types",
    "TextPrompt": "ninfer.types",
    "TokenPrompt": "ninfer.types",
    "Tool": "ninfer.types",
    "ToolCallDelta": "ninfer.types",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ninfer' has no attribute {name!r}")
    with collector_paused():
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
