"""Text to token ids and token ids to bytes.

Two ideas carry this module:

* The BPE model never sees a control token. Added tokens are found by our own scan (leftmost, longest) *where the
  caller says that they may stand*, and everything between them is encoded as plain text. So the same spelling is a
  control token in one place (written by the chat template) and ordinary text in another (typed by a user). With
  every occurrence allowed, the result equals what the `tokenizers` library gives for the whole text.
* A token is bytes, not text: byte-level BPE cuts inside UTF-8 sequences. Decoding to text is `utf8.py`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders

from ninfer.errors import ConfigError
from ninfer.frontend.resources import (
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    json_object,
    special_texts,
)

# Rows of the embedding that stand for pixels or sound: the family's spellings, and what tokenizer_config may name.
_MEDIA_TEXTS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_pad|>",
)
_MEDIA_NAMES = tuple(
    f"{name}_token" for name in ("image", "video", "audio", "vision_bos", "vision_eos", "audio_bos", "audio_eos")
)


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token outside the BPE model. `special` ones steer the model and are never part of an answer's text."""

    token_id: int
    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class ControlSpan:
    """One control token at text[begin:end]."""

    begin: int
    end: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids, and for every control span how many ids lie before it."""

    token_ids: tuple[int, ...]
    frontiers: tuple[int, ...]


class Tokenizer:
    """The model's vocabulary of `vocab_size` rows, of which the first `addressable` may carry text.

    Made from the resources `tokenizer.json` (required, byte-level BPE), `tokenizer_config.json` and
    `generation_config.json`. Raises ConfigError naming the resource and the field.
    """

    def __init__(self, resources: Mapping[str, bytes], vocab_size: int) -> None:
        if TOKENIZER not in resources:
            raise ConfigError(
                f"{TOKENIZER}: the artifact has no such resource; convert it again from a complete folder"
            )
        full = _load(resources[TOKENIZER])
        config = json_object(resources, TOKENIZER_CONFIG)
        self.vocab_size = vocab_size
        self.added = {**_added_in_file(full), **_added_in_config(config)}
        self.special_texts = special_texts(config)
        self._model = _without_added_tokens(full)
        self._ids_by_text = {token.text: token.token_id for token in self.added.values()}
        self._pattern = _any_of(self._ids_by_text)
        known = self._known_ids()
        last = max(known, default=-1)
        if last >= vocab_size:
            raise ConfigError(f"{TOKENIZER}: token id {last} is beyond the model's vocabulary of {vocab_size} rows")
        self.addressable = last + 1
        self.eos_ids = self._eos_ids(json_object(resources, GENERATION_CONFIG))
        self.unselectable = self._unselectable(known)

    # --- Encoding ---

    def find_controls(self, text: str) -> tuple[ControlSpan, ...]:
        """Every added token spelled in `text`, leftmost and longest first."""
        return tuple(
            ControlSpan(match.start(), match.end(), self._ids_by_text[match.group()])
            for match in self._pattern.finditer(text)
        )

    def mark_controls(self, text: str, marker: str) -> str:
        """`text` with `marker` put before every added token spelled in it."""
        return self._pattern.sub(lambda match: marker + match.group(), text)

    def control_at(self, text: str, begin: int) -> ControlSpan | None:
        """The added token that starts exactly at `begin`, if one does."""
        match = self._pattern.match(text, begin)
        return None if match is None else ControlSpan(begin, match.end(), self._ids_by_text[match.group()])

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` as ordinary text, whatever it spells."""
        return tuple(self._model.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str, controls: Sequence[ControlSpan]) -> Encoded:
        """Token ids of `text` with exactly `controls` (ascending, disjoint) as control tokens and the rest as text."""
        ids: list[int] = []
        frontiers: list[int] = []
        begin = 0
        for span in controls:
            ids.extend(self.encode_plain(text[begin : span.begin]))
            frontiers.append(len(ids))
            ids.append(span.token_id)
            begin = span.end
        ids.extend(self.encode_plain(text[begin:]))
        return Encoded(tuple(ids), tuple(frontiers))

    # --- Decoding ---

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for: UTF-8, possibly cut inside a character. Empty for ids without text."""
        if token_id in self.added:
            return self.added[token_id].text.encode("utf-8")
        token = self._model.id_to_token(token_id)
        return b"" if token is None else _byte_level_bytes(token)

    def visible_bytes(self, token_id: int) -> bytes:
        """`token_bytes`, but empty for special tokens, which are not part of an answer."""
        added = self.added.get(token_id)
        return b"" if added is not None and added.special else self.token_bytes(token_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole sequence, special tokens included; broken UTF-8 becomes U+FFFD."""
        return b"".join(self.token_bytes(token_id) for token_id in token_ids).decode("utf-8", "replace")

    # --- The vocabulary ---

    def id_of(self, text: str) -> int | None:
        """The id of an added token by its text."""
        return self._ids_by_text.get(text)

    def has_text(self, token_id: int) -> bool:
        """Whether an id means something: it is a BPE token or an added token."""
        return 0 <= token_id < self.addressable and (
            token_id in self.added or self._model.id_to_token(token_id) is not None
        )

    def _known_ids(self) -> set[int]:
        # The BPE ids may have holes, so the size of the vocabulary bounds nothing. Asking for every id up to it costs
        # half of listing the vocabulary; an id without a token, or with an empty one, decides for the list.
        size = self._model.get_vocab_size()
        dense = all(map(self._model.id_to_token, range(size)))
        return {*(range(size) if dense else self._model.get_vocab().values()), *self.added}

    def _eos_ids(self, generation: Mapping[str, object]) -> frozenset[int]:
        declared = generation.get("eos_token_id")
        ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not self.has_text(token_id):
                raise ConfigError(f"{GENERATION_CONFIG}: eos_token_id: {token_id!r} is no token of {TOKENIZER}")
        named = self._ids_by_text.get(self.special_texts.get("eos_token", ""))
        return frozenset(ids) | (frozenset() if named is None else frozenset({named}))

    def _unselectable(self, known: AbstractSet[int]) -> tuple[int, ...]:
        """Ids in [0, vocab_size) that must never be sampled, ascending.

        Rows without a token (holes and padding), and the media tokens: their rows stand for pixels or sound and mean
        nothing when generated. Other special tokens stay selectable, as in the reference engines: masking them
        would change which token is the likeliest.
        """
        names = [self.special_texts.get(name, "") for name in _MEDIA_NAMES]
        media = {self._ids_by_text.get(text) for text in (*_MEDIA_TEXTS, *names)} - self.eos_ids
        rows = set(range(self.vocab_size))
        return tuple(sorted((rows - known) | (rows & media)))


def _load(data: bytes) -> tokenizers.Tokenizer:
    try:
        loaded = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"{TOKENIZER}: {error}") from error
    if not isinstance(loaded.decoder, decoders.ByteLevel):
        raise ConfigError(f"{TOKENIZER}: decoder: only ByteLevel tokenizers are supported")
    return loaded


def _added_in_file(full: tokenizers.Tokenizer) -> dict[int, AddedToken]:
    added = {}
    for token_id, token in full.get_added_tokens_decoder().items():
        if token.lstrip or token.rstrip or token.single_word:
            raise ConfigError(
                f"{TOKENIZER}: added_tokens: {token.content!r}: lstrip, rstrip and single_word are not supported"
            )
        added[token_id] = AddedToken(token_id, token.content, token.special)
    return added


def _added_in_config(config: Mapping[str, object]) -> dict[int, AddedToken]:
    entries = config.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return {}
    added = {}
    for key, entry in entries.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not key.isdecimal() or not isinstance(content, str) or not content:
            raise ConfigError(f"{TOKENIZER_CONFIG}: added_tokens_decoder.{key}: needs an id and a content string")
        added[int(key)] = AddedToken(int(key), content, entry.get("special") is True)
    return added


def _without_added_tokens(full: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same model (shared, not copied), normaliser and pre-tokenizer, knowing no added token."""
    plain = tokenizers.Tokenizer(full.model)
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        plain.pre_tokenizer = full.pre_tokenizer
    return plain


def _any_of(texts: Mapping[str, int]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode("utf-8")  # like the library: a token outside the alphabet is its own text
