"""ninfer: exact, fast local inference for Qwen3.5-family hybrid models."""

from __future__ import annotations

__version__ = "0.1.0"
