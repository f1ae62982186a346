"""Chat templates: the Hugging Face environment, its limits, and its errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ninfer.errors import RequestError
from ninfer.frontend import Frontend
from ninfer.types import ChatPrompt, JsonValue, Message, Tool
from tests.frontend.models import TEMPLATE

CHAT = ChatPrompt((Message("user", "<a> & é 漢"), Message("assistant", "b", reasoning="c")), tools=(Tool("f", "<d>"),))
DICTS = [
    {"role": "user", "content": "<a> & é 漢"},
    {"role": "assistant", "content": "b", "reasoning_content": "c"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<d>"}}]


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE.replace("eos_token", "'<|im_end|>'"),
        "{% for m in messages %}\n    {% if loop.last %}{% break %}{% endif %}\n  {{ m.content }}\n{% endfor %}\nend",
        "{{ messages[0] | tojson(indent=2) }}{{ tools | tojson }}{{ documents is none }}",
        "{%- for m in messages %}{% generation %}{{ m.content }}\n{% endgeneration %}{%- endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0]['content']) }}{{ messages[0].nothing }}",
        "{{ messages[1].get('reasoning_content') }}{{ messages[0].items() | list }}{{ enable_thinking is defined }}",
    ],
)
def test_templates_render_as_in_transformers(frontend: Frontend, template: str) -> None:
    wanted, _ = render_jinja_template([DICTS], tools=TOOLS, chat_template=template, add_generation_prompt=True)
    assert frontend.render(replace(CHAT, template=template)) == wanted[0]


def test_the_clock_is_the_callers(frontend: Frontend) -> None:
    assert frontend.render(replace(CHAT, template="{{ strftime_now('%d %b %Y') }}")) == "02 Jan 2026"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [({}, "True low"), ({"enable_thinking": False, "reasoning_effort": "high"}, "False high")],
)
def test_template_arguments_win_over_what_is_derived(
    frontend: Frontend, arguments: dict[str, JsonValue], wanted: str
) -> None:
    chat = replace(CHAT, template="{{ enable_thinking }} {{ reasoning_effort }}", thinking=True, reasoning_effort="low")
    assert frontend.render(replace(chat, template_args=arguments)) == wanted


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 9 ** 99999999 }}",
        "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ 1 + 'a' }}",
        "{{ nothing.more }}",
    ],
)
def test_a_template_cannot_escape_run_away_or_crash(frontend: Frontend, template: str) -> None:
    with pytest.raises(RequestError, match="template: "):
        frontend.render(replace(CHAT, template=template))
