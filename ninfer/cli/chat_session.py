"""One conversation: its messages, its commands, and the answers as they come."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer.cli.answers import AnswerPrinter, drain, statistics
from ninfer.cli.chat_input import ReadLine, read_turn
from ninfer.cli.failures import CommandError
from ninfer.cli.outputs import say, write_text
from ninfer.errors import NinferError, RequestError, RequestErrorKind
from ninfer.types import Finish, FinishReason, GenerationRequest, Message

if TYPE_CHECKING:
    from ninfer.engine import Engine

HELP = '''Type a message and press Enter.
  ... \\         a line that ends in a backslash goes on in the next
  """..."""     so does everything between triple quotes
  /help         this text
  /reset        forget the conversation (the system message stays)
  /system TEXT  set the system message; without TEXT, show it
  /save FILE    write the conversation as JSON, for `ninfer run --messages FILE`
  /quit         leave (so does Ctrl-D)
Ctrl-C stops an answer and keeps the conversation.'''

_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)

RequestFactory = Callable[[Sequence[Message], str], GenerationRequest]


class ChatSession:
    """Takes turns until the input ends. `request(messages, session_key)` makes each turn's request.

    Interactive sessions survive errors and Ctrl-C; piped ones end with them, so that scripts notice.
    """

    def __init__(self, engine: Engine, request: RequestFactory, system: str | None, interactive: bool) -> None:
        self._engine = engine
        self._request = request
        self._interactive = interactive
        self._system = system
        self._turns: list[Message] = []
        self._key = secrets.token_hex(8)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, system message first."""
        head = () if self._system is None else (Message("system", self._system),)
        return (*head, *self._turns)

    def loop(self, read_line: ReadLine) -> None:
        """Take turns until end of input or /quit."""
        while True:
            try:
                text = read_turn(read_line)
            except EOFError:
                return self._leave()
            except KeyboardInterrupt:
                self._interrupted_at_prompt()
                continue
            if text.strip() and not self._handle(text):
                return None

    def _leave(self) -> None:
        if self._interactive:
            say("")

    def _interrupted_at_prompt(self) -> None:
        if not self._interactive:
            raise KeyboardInterrupt
        say("\n(Ctrl-D or /quit leaves)")

    def _handle(self, text: str) -> bool:
        """Do a command or answer a message; False to leave."""
        command = _COMMAND.fullmatch(text.strip())
        if command and command[1] in ("quit", "exit"):
            return False
        try:
            if command:
                self._do(command[1], (command[2] or "").strip())
            else:
                self._answer(text)
        except (NinferError, OSError) as error:
            if not self._interactive:
                raise
            say(f"error: {error}")
        return True

    def _do(self, name: str, argument: str) -> None:
        match name:
            case "help":
                say(HELP)
            case "reset":
                self._turns, self._key = [], secrets.token_hex(8)
                say("(new conversation)")
            case "system":
                self._do_system(argument)
            case "save":
                self._do_save(argument)
            case _:
                raise CommandError(f"/{name} is no command: /help lists them")

    def _do_system(self, argument: str) -> None:
        if argument:
            self._system = argument
        say(f"(system message: {self._system or 'none'})")

    def _do_save(self, argument: str) -> None:
        if not argument:
            raise CommandError("/save needs a file name")
        rows = [_message_json(message) for message in self.messages]
        write_text(Path(argument).expanduser(), json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
        say(f"(saved {len(rows)} messages to {argument})")

    def _answer(self, text: str) -> None:
        """The turn is kept only if there was an answer, whole or stopped part-way."""
        asked = Message("user", text)
        request = self._request((*self.messages, asked), self._key)
        printer = AnswerPrinter()
        try:
            finish = self._generate(request, printer)
        except RequestError as error:
            raise _with_remedy(error) from error
        if printer.content or printer.reasoning:
            self._turns += [asked, Message("assistant", printer.content, reasoning=printer.reasoning or None)]
        say(statistics(finish.usage, finish.timings, finish.reason) + self._advice(finish))

    def _generate(self, request: GenerationRequest, printer: AnswerPrinter) -> Finish:
        with self._engine.generate(request) as handle:
            try:
                return drain(handle, printer)
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                handle.cancel()
                return drain(handle, printer)

    def _advice(self, finish: Finish) -> str:
        used = finish.usage.prompt_tokens + finish.usage.completion_tokens
        full = finish.reason is FinishReason.LENGTH and used >= self._engine.info.max_context
        return " the context is full: /reset starts afresh" if full else ""


def _with_remedy(error: RequestError) -> NinferError:
    if error.kind is not RequestErrorKind.CONTEXT_EXCEEDED:
        return error
    return CommandError(f"{error}; /reset starts afresh, a larger --max-context holds more")


def _message_json(message: Message) -> dict[str, object]:
    row: dict[str, object] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        row["reasoning_content"] = message.reasoning
    return row
