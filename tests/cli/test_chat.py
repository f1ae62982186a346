"""`ninfer chat`: piped turns, and the session behind the prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ninfer.cli.chat_input import read_turn
from ninfer.cli.chat_session import ChatSession
from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import ChatPrompt, FinishReason, GenerationRequest, Message, Usage
from tests.cli.conftest import Invoke
from tests.cli.fakes import Answer, FakeEngine


class Lines:
    """Typed lines; a KeyboardInterrupt among them is a Ctrl-C, the end is Ctrl-D."""

    def __init__(self, *lines: str | KeyboardInterrupt) -> None:
        self._lines = list(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if not self._lines:
            raise EOFError
        line = self._lines.pop(0)
        if isinstance(line, KeyboardInterrupt):
            raise line
        return line


def request(messages: Sequence[Message], key: str) -> GenerationRequest:
    return GenerationRequest(ChatPrompt(tuple(messages)), session_key=key)


def talk(engine: FakeEngine, *lines: str | KeyboardInterrupt, system: str | None = None) -> ChatSession:
    session = ChatSession(engine, request, system, interactive=True)
    session.loop(Lines(*lines))
    return session


def asked(engine: FakeEngine) -> list[tuple[Message, ...]]:
    return [item.prompt.messages for item in engine.requests if isinstance(item.prompt, ChatPrompt)]


def test_piped_lines_are_turns_and_only_answers_go_to_stdout(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    engine.script += [Answer(("Fine.",), ("well",)), Answer(("Bye.",))]
    result = invoke("chat", model, stdin="How are you?\n\nBye\n")
    assert result.exit_code == 0
    assert result.stdout == "Fine.\nBye.\n"
    assert "well" in result.stderr
    first = Message("user", "How are you?")
    assert asked(engine) == [(first,), (first, Message("assistant", "Fine.", "well"), Message("user", "Bye"))]


def test_turns_of_one_session_share_its_key_and_a_reset_changes_it(engine: FakeEngine) -> None:
    talk(engine, "a", "b", "/reset", "c")
    keys = [item.session_key for item in engine.requests]
    assert keys[0] == keys[1] != keys[2]
    assert None not in keys
    assert asked(engine)[2] == (Message("user", "c"),)


def test_piped_failures_end_with_exit_1(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    engine.script.append(RequestError(RequestErrorKind.CONTEXT_EXCEEDED, "900 tokens do not fit 512"))
    result = invoke("chat", model, stdin="a\nb\n")
    assert result.exit_code == 1
    assert "/reset" in result.stderr
    assert "--max-context" in result.stderr
    assert len(engine.requests) == 1


def test_interactive_failures_keep_the_session(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.script.append(RequestError(RequestErrorKind.CONTEXT_EXCEEDED, "too long"))
    talk(engine, "a", "b")
    assert asked(engine) == [(Message("user", "a"),), (Message("user", "b"),)]
    assert "error: too long; /reset" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(engine: FakeEngine) -> None:
    engine.script.append(Answer(("par", "tial"), interrupt_after=1))
    session = talk(engine, "a", "b")
    assert engine.handles[0].cancelled
    assert session.messages[:2] == (Message("user", "a"), Message("assistant", "par"))
    assert asked(engine)[1][-1] == Message("user", "b")


def test_ctrl_c_before_any_text_drops_the_turn(engine: FakeEngine) -> None:
    engine.script.append(Answer(interrupt_after=0))
    assert talk(engine, "a").messages == ()


def test_ctrl_c_at_the_prompt_says_how_to_leave(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    talk(engine, KeyboardInterrupt(), "/quit", "never read")
    assert "/quit" in capsys.readouterr().err
    assert engine.requests == []


def test_system_message_comes_first_and_survives_a_reset(engine: FakeEngine) -> None:
    talk(engine, "a", "/system Be brief.", "/reset", "b", system="Be long.")
    assert asked(engine) == [
        (Message("system", "Be long."), Message("user", "a")),
        (Message("system", "Be brief."), Message("user", "b")),
    ]


def test_saved_conversations_can_be_run(invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    engine.script.append(Answer(("Yes",), ("hm",)))
    talk(engine, "a", f"/save {saved}", system="S")
    assert json.loads(saved.read_text()) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "Yes", "reasoning_content": "hm"},
    ]
    assert invoke("run", model, "--messages", saved).exit_code == 0
    assert asked(engine)[-1][-1] == Message("assistant", "Yes", "hm")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/help", "/reset"),
        ("/nosuch", "/nosuch is no command"),
        ("/save", "needs a file name"),
        ("/save /nosuch/dir/x.json", "does not exist"),
        ("/system", "none"),
    ],
)
def test_commands_answer_on_stderr(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    talk(engine, line)
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert engine.requests == []


def test_paths_are_messages_not_commands(engine: FakeEngine) -> None:
    talk(engine, "/etc/passwd is a file")
    assert len(engine.requests) == 1


def test_the_status_line_shows_speed_and_reuse(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.script.append(Answer(usage=Usage(30, 20, 6)))
    talk(engine, "a")
    status = capsys.readouterr().err
    assert "20 reused" in status
    assert "10.0 tokens/s" in status


def test_a_full_context_is_said_with_the_remedy(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.script.append(Answer(reason=FinishReason.LENGTH, usage=Usage(500, 0, 12)))
    talk(engine, "a")
    assert "the context is full: /reset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "turn"),
    [
        (["one line"], "one line"),
        (["first\\", "second\\", "third"], "first\nsecond\nthird"),
        (["ends\\"], "ends\n"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""a"""'], "a"),
        (['"""unfinished', "block"], "unfinished\nblock"),
    ],
)
def test_turns_of_several_lines(lines: list[str], turn: str) -> None:
    source = Lines(*lines)
    assert read_turn(source) == turn
    assert source.prompts[0] == "> "
    assert set(source.prompts[1:]) <= {"… "}


def test_the_end_of_input_ends_the_turns() -> None:
    with pytest.raises(EOFError):
        read_turn(Lines())
