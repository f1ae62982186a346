"""Renders dialogues with the chat template and packs them into training rows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

import jinja2
import numpy as np
from data import Dialogue
from jinja2.sandbox import ImmutableSandboxedEnvironment
from mixture import training_dialogue
from tokenizers import Tokenizer

TEMPLATE_PATH = Path(__file__).parent / "chat_template.jinja"
REPLY_START = re.compile(r"<\|im_start\|>assistant\n<think>\n(?:\n</think>\n\n)?")
END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"


def load_template(path: Path = TEMPLATE_PATH) -> jinja2.Template:
    """Compile the template in the environment that transformers uses for chat templates."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(path.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids with, per token, whether it is a training target (1) or given (0)."""

    ids: list[int]
    targets: list[int]


class Encoder:
    """Turns dialogues and free text into documents."""

    def __init__(self, tokenizer: Tokenizer, template: jinja2.Template) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def dialogue(self, dialogue: Dialogue) -> Document:
        """Encode a dialogue; the targets are the replies after the last user message, end token included."""
        text = self._template.render(messages=dialogue.messages, tools=dialogue.tools)
        ids: list[int] = []
        targets: list[int] = []
        for piece, is_target in split_replies(text):
            encoded = self._tokenizer.encode(piece, add_special_tokens=False).ids
            ids += encoded
            targets += [int(is_target)] * len(encoded)
        return Document(ids, targets)

    def text(self, text: str) -> Document:
        ids = self._tokenizer.encode(text + END_OF_TEXT, add_special_tokens=False).ids
        return Document(ids, [0] + [1] * (len(ids) - 1))


def split_replies(text: str) -> list[tuple[str, bool]]:
    """Split rendered text at token boundaries into (piece, is it a reply to train on)."""
    pieces: list[tuple[str, bool]] = []
    position = 0
    for match in REPLY_START.finditer(text):
        end = text.index(END_OF_TURN, match.end()) + len(END_OF_TURN)
        pieces += [(text[position : match.end()], False), (text[match.end() : end], True)]
        position = end
    return [*pieces, (text[position:], False)]


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows, all [rows, length]: token ids, target flags, position inside the document."""

    ids: np.ndarray
    targets: np.ndarray
    positions: np.ndarray


def pack_rows(rng: Random, encoder: Encoder, chapters: list[list[int]], rows: int, length: int) -> Rows:
    """Fill rows with whole dialogues; what is left of a row becomes a piece of free text.

    One row in 32 is free text altogether. `chapters` are the encoded chapters of the free text.
    """
    ids = np.zeros((rows, length), np.int64)
    targets = np.zeros((rows, length), np.int64)
    positions = np.zeros((rows, length), np.int64)
    for row in range(rows):
        documents = [] if rng.random() < 1 / 32 else fitting_dialogues(rng, encoder, length)
        filled = 0
        for document in [*documents, None]:
            if document is None:
                document = text_piece(rng, chapters, length - filled)
            end = filled + len(document.ids)
            ids[row, filled:end], targets[row, filled:end] = document.ids, document.targets
            positions[row, filled:end] = np.arange(end - filled)
            filled = end
    return Rows(ids, targets, positions)


def fitting_dialogues(rng: Random, encoder: Encoder, length: int) -> list[Document]:
    """Draw dialogues until three in a row do not fit into what is left."""
    documents: list[Document] = []
    left, misses = length, 0
    while misses < 3 and left > 24:
        document = encoder.dialogue(training_dialogue(rng, turns_limit=max(3, length // 170)))
        if len(document.ids) <= left:
            documents.append(document)
            left -= len(document.ids)
        else:
            misses += 1
    return documents


def text_piece(rng: Random, chapters: list[list[int]], length: int) -> Document:
    """Cut exactly `length` tokens of free text, from a chapter's start in one case of four."""
    ids: list[int] = []
    start = 0 if rng.random() < 0.25 else None
    while len(ids) < length:
        chapter = rng.choice(chapters)
        begin = rng.randrange(max(1, len(chapter) - 32)) if start is None else start
        ids += chapter[begin : begin + length - len(ids)]
    return Document(ids, [0] * min(4, length) + [1] * max(0, length - 4))
