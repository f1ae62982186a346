"""Chat templates: Jinja in a sandbox, rendered exactly as the Hugging Face tokenizers render them.

The environment is theirs: trimmed blocks, loop controls, `tojson` without HTML escaping, `raise_exception`,
`strftime_now`, and the `generation` tag (which only groups). Templates are foreign code, so a rendering is bounded in
loop steps, macro calls, output size and the size of repeated strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer.errors import ConfigError, RequestError, RequestErrorKind
from ninfer.frontend.ownership import mark_written_literals

MAX_STEPS = 200_000
MAX_CHARACTERS = 32 * 1024 * 1024
_MAX_BITS = 1 << 16
_STEPS = "ninfer steps"  # no template can name a variable with a space in it
_MARKERS = range(0xF0000, 0xFFFFE)  # private use, never white space: trimming leaves it alone


@dataclass(frozen=True, slots=True)
class Rendering:
    """Rendered text, and where in it the template wrote control tokens itself (ascending character positions).

    `owned` is None when the template looks at its own literals, so that marking them changed what it renders.
    """

    text: str
    owned: tuple[int, ...] | None


class ChatTemplate:
    """One compiled template. `where` names it in errors; `mark(text, marker)` marks the control tokens in a literal.

    `written` are variables that hold special tokens (`eos_token`, …): what a template writes of them is its own.
    Raises ConfigError for a syntax error.
    """

    def __init__(self, source: str, where: str, mark: Callable[[str, str], str], written: Mapping[str, str]) -> None:
        self._source = source
        self._where = where
        self._mark = mark
        self._written = written
        self._plain = _compile(source, where, lambda literal: literal)
        self._marked: tuple[str, jinja2.Template] | None = None

    def text(self, variables: Mapping[str, object], now: datetime) -> str:
        """The rendering alone. Raises RequestError (INVALID) with the template's own message when it refuses."""
        return self._render(self._plain, {**self._written, **variables}, now)

    def render(self, variables: Mapping[str, object], now: datetime) -> Rendering:
        """The rendering and the control tokens in it that the template owns. Raises like `text`."""
        text = self.text(variables, now)
        marker, template = self._marked_for(text)
        written = {name: self._mark(value, marker) for name, value in self._written.items()}
        try:
            pieces = self._render(template, {**written, **variables}, now).split(marker)
        except RequestError:
            return Rendering(text, None)
        if "".join(pieces) != text:
            return Rendering(text, None)
        return Rendering(text, tuple(accumulate(len(piece) for piece in pieces[:-1])))

    def _marked_for(self, text: str) -> tuple[str, jinja2.Template]:
        """A marker that neither this text nor the template holds, and the template compiled with it."""
        if self._marked is None or self._marked[0] in text:
            taken = set(text) | set(self._source)
            marker = next((char for char in map(chr, _MARKERS) if char not in taken), None)
            if marker is None:
                raise RequestError(
                    RequestErrorKind.INVALID, f"{self._where}: the prompt holds every private-use character of plane 15"
                )
            marked = _compile(self._source, self._where, lambda literal: self._mark(literal, marker))
            self._marked = (marker, marked)
        return self._marked

    def _render(self, template: jinja2.Template, variables: Mapping[str, object], now: datetime) -> str:
        size, blocks = 0, []
        try:
            for block in template.generate({**variables, "strftime_now": now.strftime, _STEPS: [0]}):
                size += len(block)
                if size > MAX_CHARACTERS:
                    raise jinja2.TemplateError(f"more than {MAX_CHARACTERS} characters of output")
                blocks.append(block)
        except Exception as error:  # a template is foreign code and can fail in any way
            raise RequestError(RequestErrorKind.INVALID, f"{self._where}: {error or type(error).__name__}") from error
        return "".join(blocks)


def _compile(source: str, where: str, mark: Callable[[str], str]) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters.update(tojson=_tojson, **{_TICK: _tick})
    environment.globals.update(raise_exception=_raise_exception)
    try:
        tree = environment.parse(source)
        mark_written_literals(tree, mark)
        _count_steps(tree)
        code = environment.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}: line {error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which also bounds repetition (`'x' * n`) and powers."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse a product or power that would not fit a rendering."""
        if operator == "*":
            sizes = [len(side) if isinstance(side, (str, list, tuple)) else side for side in (left, right)]
            too_large = any(side is not size for side, size in zip((left, right), sizes, strict=True)) and (
                sizes[0] * sizes[1] > MAX_CHARACTERS
            )
        else:
            too_large = all(isinstance(side, int) for side in (left, right)) and (left.bit_length() * right > _MAX_BITS)
        if too_large:
            raise jinja2.TemplateError(f"the result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares this attribute as an instance's mutable set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


_TICK = "ninfer tick"


def _count_steps(tree: nodes.Template) -> None:
    """Count one step at the start of every loop body and macro body."""
    for block in tree.find_all((nodes.For, nodes.Macro)):
        assert isinstance(block, (nodes.For, nodes.Macro))
        step = nodes.ExprStmt(nodes.Filter(nodes.Const(None), _TICK, [], [], None, None), lineno=block.lineno)
        block.body.insert(0, step)


@jinja2.pass_context
def _tick(context: Context, value: object) -> object:
    steps = context.get(_STEPS)
    steps[0] += 1
    if steps[0] > MAX_STEPS:
        raise jinja2.TemplateError(f"more than {MAX_STEPS} loop steps")
    return value


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
