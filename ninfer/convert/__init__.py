"""Converts Hugging Face checkpoints of the Qwen3.5 family to `.ninfer` artifacts.

`convert` is the whole public API; recipe files also use `ninfer.convert.recipe.Recipe` and
`ninfer.convert.methods`.
"""

from __future__ import annotations

from ninfer.convert.converter import ConvertPhase, ConvertProgress, ConvertReport, ObjectReport, convert
from ninfer.convert.recipes import RECIPES

__all__ = ["RECIPES", "ConvertPhase", "ConvertProgress", "ConvertReport", "ObjectReport", "convert"]
