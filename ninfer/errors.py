"""The one small tree of errors that users of ninfer can meet.

Every message names the thing (file, JSON path, parameter, flag) and the remedy.
"""

from __future__ import annotations

import enum


class NinferError(Exception):
    """Base of every error that ninfer raises on purpose."""


class ArtifactError(NinferError):
    """A `.ninfer` file set is missing, malformed, truncated or inconsistent."""


class ConfigError(NinferError):
    """A model config, recipe, option or checkpoint says something that ninfer cannot honour."""


class RequestErrorKind(enum.Enum):
    """Why one request could not be served; the Engine goes on with the next."""

    INVALID = "invalid"
    CONTEXT_EXCEEDED = "context_exceeded"
    INFEASIBLE = "infeasible"
    OVERLOADED = "overloaded"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    CLOSED = "closed"
    FAILED = "failed"


class RequestError(NinferError):
    """One request was refused or failed; `kind` says why in machine-readable form."""

    def __init__(self, kind: RequestErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EngineFailure(NinferError):
    """Shared physical state can no longer be explained: the Engine stopped and must be built anew."""


class CudaError(NinferError):
    """There is no usable CUDA device, a kernel cannot be compiled for it, or a launch failed; with the remedy."""


class CompiledKernelsWarning(RuntimeWarning):
    """Kernels cannot be compiled or kept on this machine; the message says what that costs, why, and what to do."""
