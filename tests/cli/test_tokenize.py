"""`ninfer tokenize`: the rendered prompt and its ids."""

from __future__ import annotations

import json
from pathlib import Path

from ninfer.types import ChatPrompt, Message, TextPrompt
from tests.cli.conftest import Invoke
from tests.cli.fakes import FakeEngine


def test_text_and_ids_on_two_lines(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("tokenize", model, "--text", "Hi!")
    assert result.stdout == "Hi!\n72 105 33\n"
    assert engine.prompts == [TextPrompt("Hi!")]


def test_json_has_text_and_ids(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("tokenize", model, "--text", "-", "--json", stdin="é\n")
    assert json.loads(result.stdout) == {"text": "é\n", "ids": [195, 169, 10]}


def test_template_arguments_are_json_or_text(invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path) -> None:
    messages = tmp_path / "m.json"
    messages.write_text('[{"role": "user", "content": "Hi"}]')
    arguments = ("add_generation_prompt=false", "n=3", "name=Jane Doe", 'quoted="3"', "empty=", "eq=a=b")
    pairs = [part for argument in arguments for part in ("--template-arg", argument)]
    assert invoke("tokenize", model, "--messages", messages, "--no-thinking", *pairs).exit_code == 0
    assert engine.prompts == [
        ChatPrompt(
            (Message("user", "Hi"),),
            thinking=False,
            template_args={
                "add_generation_prompt": False,
                "n": 3,
                "name": "Jane Doe",
                "quoted": "3",
                "empty": "",
                "eq": "a=b",
            },
        )
    ]
