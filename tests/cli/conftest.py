"""Commands run in this process against fakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ninfer.cli import factories
from ninfer.cli.main import app
from ninfer.types import EngineOptions, Prompt
from tests.cli.fakes import FakeEngine, FakeScorer, Rendered

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run `ninfer ARGUMENTS…` with optional `stdin`, in a clean environment."""
    monkeypatch.delenv("NINFER_MODEL", raising=False)

    def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A path that exists; the fakes do not read it."""
    path = tmp_path / "model.ninfer"
    path.write_bytes(b"fake")
    return path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The engine that every command gets; `engine.opened` tells with what."""
    fake = FakeEngine()

    def open_engine(path: Path, options: EngineOptions, report: factories.Report) -> FakeEngine:
        report("loading", 1, 1)
        fake.opened = (path, options)
        return fake

    def render(path: Path, prompt: Prompt) -> Rendered:
        fake.opened = (path, EngineOptions())
        fake.prompts.append(prompt)
        return fake.render(prompt)

    monkeypatch.setattr(factories, "open_engine", open_engine)
    monkeypatch.setattr(factories, "render", render)
    return fake


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score command gets the fake scorer."""
    monkeypatch.setattr(
        factories, "open_scorer", lambda path, options, context, stride, report: FakeScorer(context, stride)
    )
