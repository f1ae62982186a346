"""The demo model that ships: it is what `examples/demo` converts to, and it still knows what it was trained for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact.reader import ArtifactReader
from ninfer.cli.models import demo_model
from ninfer.convert import convert
from ninfer.engine import Engine
from ninfer.types import ChatPrompt, EngineOptions, GenerationRequest, Message, Sampling

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "demo"
ROUNDING = 0.05
"""Quantised weights and a bf16 cache decide a few answers otherwise than the stored bf16 weights do."""


def contents(path: Path) -> dict[str, Any]:
    with ArtifactReader.open(path) as reader:
        directory = reader.directory
        objects = {stored.id: bytes(reader.read_object(stored.id)) for stored in directory.objects}
        return {
            "name": directory.name,
            "objects": objects,
            "bindings": directory.bindings,
            "uses": directory.uses,
            "components": directory.components,
        }


def test_the_shipped_artifact_is_the_conversion_of_the_checkpoint(tmp_path: Path) -> None:
    convert(SOURCE, tmp_path / "demo.ninfer", recipe="q8", name="ninfer-demo")
    assert contents(demo_model()) == contents(tmp_path / "demo.ninfer")


def test_a_conversation_reuses_its_history_with_default_options() -> None:
    messages: list[Message] = []
    reused = []
    with Engine(demo_model(), EngineOptions(threads=1)) as engine:
        for question in ("Who are you?", "What is 12 + 7?", "What is the capital of France?"):
            messages.append(Message("user", question))
            result = engine.generate(messages, session_key="talk", sampling=Sampling.greedy()).result()
            messages.append(Message("assistant", result.text, result.reasoning))
            reused.append(result.usage.reused_tokens)
    assert reused[0] == 0
    assert 0 < reused[1] < reused[2]


def heldout() -> list[dict[str, Any]]:
    questions: list[dict[str, Any]] = json.loads((SOURCE / "heldout.json").read_text())
    return questions


def asked(question: dict[str, Any]) -> GenerationRequest:
    messages = tuple(Message(m["role"], m["content"], m.get("reasoning_content")) for m in question["messages"])
    prompt = ChatPrompt(messages, thinking=question["thinking"])
    return GenerationRequest(prompt, max_new_tokens=160, sampling=Sampling.greedy())


@pytest.fixture(scope="module")
def replies() -> list[tuple[dict[str, Any], str]]:
    options = EngineOptions(threads=1, max_context=512, kv_capacity=64, max_concurrency=8, max_pending_requests=200)
    with Engine(demo_model(), options) as engine:
        handles = [(question, engine.generate(asked(question))) for question in heldout()]
        return [(question, handle.result().text.strip()) for question, handle in handles]


@pytest.mark.parametrize("skill", ["arithmetic", "copy"])
def test_held_out_accuracy_is_what_the_checkpoint_was_measured_at(
    replies: list[tuple[dict[str, Any], str]], skill: str
) -> None:
    measured = json.loads((SOURCE / "metrics.json").read_text())["heldout_json"][skill]["accuracy"]
    marks = [reply == question["expected"] for question, reply in replies if question["skill"] == skill]
    assert len(marks) >= 50
    assert sum(marks) / len(marks) >= measured - ROUNDING
