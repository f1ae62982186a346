"""A small byte-level tokenizer with the family's control tokens, a compact chat template, and a Frontend on them."""

from __future__ import annotations

import functools
import json
from datetime import datetime

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ninfer.frontend import Frontend

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
)
VISIBLE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TAGS = ("<think>", "</think>")
PADDING = 7

_SPLIT = r"\p{N}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CORPUS = (
    "the quick brown fox jumps over the lazy dog and the cat sat on the mat",
    "user assistant system tool think <function=name> <parameter=key> 漢字かな العربية नमस्ते 🙂👩‍👩‍👧",
    "<|im_start|> <|im_end|> im_start im_end tool_call\n\n\n\n</think>\n\n",
)

TEMPLATE = """\
{%- for tool in tools or [] %}{{- '<|im_start|>tool\n' + (tool | tojson) + '<|im_end|>\n' }}{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else message.content | join('', attribute='text') %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' and loop.last and message.reasoning_content %}
        {{- '<think>\n' ~ message.reasoning_content ~ '\n</think>\n\n' }}
    {%- endif %}
    {{- content | trim }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' }}{{ call.function.name }} {{ call.function.arguments | tojson }}{{ '</tool_call>' }}
    {%- endfor %}
    {{- eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' ~ ('<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n') }}
{%- endif %}
"""


def library_tokenizer(tags: bool = True) -> Tokenizer:
    """The small tokenizer as the library makes it; without `tags`, `<think>` and `</think>` are ordinary text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    visible = (*VISIBLE, *(TAGS if tags else ()))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in visible])
    return tokenizer


@functools.cache
def byte_tokens() -> dict[int, int]:
    """The token id of every single byte; the trainer gives the alphabet the first 256 ids."""
    tokenizer = small_frontend().tokenizer
    return {tokenizer.token_bytes(token_id)[0]: token_id for token_id in range(256)}


def small_resources(tags: bool = True, **generation: object) -> dict[str, bytes]:
    """The resources of the small model; `generation` adds to its generation_config."""
    tokenizer = library_tokenizer(tags)
    end = tokenizer.token_to_id("<|endoftext|>")
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>", "bos_token": None}).encode(),
        "generation_config.json": json.dumps({"eos_token_id": [end], **generation}).encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }


def small_frontend(tags: bool = True, is_moe: bool = False, **generation: object) -> Frontend:
    """A Frontend on the small model, whose matrices have PADDING more rows than it has tokens."""
    vocab_size = library_tokenizer(tags).get_vocab_size() + PADDING
    return Frontend(small_resources(tags, **generation), vocab_size, is_moe, clock=lambda: datetime(2026, 1, 2))
