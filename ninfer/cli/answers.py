"""Answers on the way to the user: content on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from ninfer.cli.failures import CommandError
from ninfer.cli.outputs import say
from ninfer.types import (
    Channel,
    Delta,
    Event,
    Finish,
    FinishReason,
    GenerationResult,
    GenerationStart,
    Timings,
    ToolCallDelta,
    Usage,
)

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerPrinter:
    """Prints one answer as it comes: content to stdout, reasoning dimmed and tool calls plainly to stderr.

    `content` and `reasoning` hold what has been printed so far.
    """

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self._styled = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        self._open_tool: int | None = None

    def show(self, event: Event) -> None:
        """Print what one event adds."""
        match event:
            case Delta(channel=Channel.CONTENT, text=text):
                self._show_content(text)
            case Delta(channel=Channel.REASONING, text=text):
                self._show_reasoning(text)
            case ToolCallDelta():
                self._show_tool_call(event)
            case GenerationStart() | Finish():
                pass

    def finish(self) -> None:
        """End the line that is being written."""
        if self.content and not self.content.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()
        if self._open_tool is not None:
            say(")")
        elif self.reasoning and not self.content:
            say("")

    def _show_content(self, text: str) -> None:
        if text and self.reasoning and not self.content:
            say("" if self.reasoning.endswith("\n") else "\n")
        self.content += text
        sys.stdout.write(text)
        sys.stdout.flush()

    def _show_reasoning(self, text: str) -> None:
        self.reasoning += text
        sys.stderr.write(f"{_DIM}{text}{_PLAIN}" if self._styled and text else text)
        sys.stderr.flush()

    def _show_tool_call(self, event: ToolCallDelta) -> None:
        if event.index != self._open_tool:
            closing = "" if self._open_tool is None else ")\n"
            sys.stderr.write(f"{closing}tool call {event.name}(")
            self._open_tool = event.index
        sys.stderr.write(event.arguments)
        sys.stderr.flush()


def drain(events: Iterable[Event], printer: AnswerPrinter) -> Finish:
    """Print an answer to its end. Raises CommandError if it ended in an error."""
    finish = None
    try:
        for event in events:
            printer.show(event)
            finish = event if isinstance(event, Finish) else finish
    finally:
        printer.finish()
    assert finish is not None, "every answer ends with one Finish"
    if finish.reason is FinishReason.ERROR:
        raise CommandError(f"generation failed: {finish.error}")
    return finish


def statistics(usage: Usage, timings: Timings, reason: FinishReason) -> str:
    """One line for stderr: tokens, reuse, speed, time to the first token, why it ended."""
    reused = f", {usage.reused_tokens} reused" if usage.reused_tokens else ""
    parts = [
        f"{usage.prompt_tokens} prompt tokens{reused}",
        f"{usage.completion_tokens} generated",
        *_speed(usage, timings),
        f"first token after {timings.queue + timings.prefill:.2f} s",
        reason.value,
    ]
    return f"[{' · '.join(parts)}]"


def _speed(usage: Usage, timings: Timings) -> list[str]:
    """Tokens per second from the first to the last token: one interval fewer than tokens."""
    if usage.completion_tokens < 2 or timings.decode <= 0:
        return []
    return [f"{(usage.completion_tokens - 1) / timings.decode:.1f} tokens/s"]


def result_json(result: GenerationResult) -> Mapping[str, object]:
    """The object that `run --json` prints."""
    return {
        "text": result.text,
        "reasoning": result.reasoning,
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in result.tool_calls
        ],
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason.value,
        "usage": asdict(result.usage),
        "timings": asdict(result.timings),
    }
