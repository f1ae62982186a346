"""Tokenizer: control tokens only where allowed, bytes exactly, and which ids can be chosen."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from ninfer.errors import ConfigError
from ninfer.frontend import Frontend, utf8
from ninfer.frontend.tokenizer import Tokenizer
from tests.frontend.models import PADDING, SPECIAL, TAGS, VISIBLE, library_tokenizer, small_resources

FRAGMENTS = st.one_of(
    st.sampled_from(
        (*SPECIAL, *VISIBLE, *TAGS, "<|im_", "end|>", "<", "\n\n", " ", "👩‍👩‍👧", "e\u0301", "漢字", "سلام")
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
TEXTS = st.lists(FRAGMENTS, max_size=8).map("".join)


@given(text=TEXTS)
def test_with_every_control_token_allowed_the_library_agrees(frontend: Frontend, library: Library, text: str) -> None:
    tokenizer = frontend.tokenizer
    encoded = tokenizer.encode(text, tokenizer.find_controls(text))
    assert list(encoded.token_ids) == library.encode(text, add_special_tokens=False).ids


@given(text=TEXTS)
def test_plain_text_never_becomes_a_control_token(frontend: Frontend, library: Library, text: str) -> None:
    ids = frontend.encode_text(text)
    assert not set(ids) & set(frontend.tokenizer.added)
    assert frontend.tokenizer.decode(ids) == library.normalizer.normalize_str(text)


@given(text=TEXTS, allowed=st.sets(st.integers(0, 9)))
def test_frontiers_count_the_tokens_before_each_control(frontend: Frontend, text: str, allowed: set[int]) -> None:
    tokenizer = frontend.tokenizer
    spans = [span for i, span in enumerate(tokenizer.find_controls(text)) if i in allowed]
    encoded = tokenizer.encode(text, spans)
    assert [encoded.token_ids[frontier] for frontier in encoded.frontiers] == [span.token_id for span in spans]
    assert sum(token_id in tokenizer.added for token_id in encoded.token_ids) == len(spans)
    for span, frontier in zip(spans, encoded.frontiers, strict=True):
        assert (
            encoded.token_ids[:frontier]
            == tokenizer.encode(text[: span.begin], [s for s in spans if s.end <= span.begin]).token_ids
        )


@given(data=st.data())
def test_decoding_equals_the_library(frontend: Frontend, library: Library, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, frontend.addressable_tokens - 1), max_size=12))
    assert frontend.tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)
    visible = b"".join(frontend.tokenizer.visible_bytes(token_id) for token_id in ids).decode("utf-8", "replace")
    assert visible == library.decode(ids, skip_special_tokens=True)


@given(
    chunks=st.lists(st.one_of(st.binary(max_size=3), st.text(max_size=2).map(lambda t: t.encode("utf-8", "replace"))))
)
def test_incremental_utf8_equals_decoding_the_whole(chunks: list[bytes]) -> None:
    texts, undecoded = [], b""
    for chunk in chunks:
        text, undecoded = utf8.decode_step(undecoded, chunk)
        texts.append(text)
        assert len(undecoded) <= 3
    assert "".join(texts) + utf8.finish(undecoded) == b"".join(chunks).decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦 e\u0301 漢字 مرحبا नमस्ते", "𝒳\U0010ffff\ufffd"])
def test_no_cut_shows_a_broken_character(text: str) -> None:
    encoded = text.encode()
    for cut in range(len(encoded) + 1):
        first, undecoded = utf8.decode_step(b"", encoded[:cut])
        second, rest = utf8.decode_step(undecoded, encoded[cut:])
        assert (first + second, rest) == (text, b"")
        assert text.startswith(first)


def test_unselectable_are_rows_without_a_token_and_media(frontend: Frontend, library: Library) -> None:
    rows = library.get_vocab_size()
    media = {library.token_to_id(text) for text in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")}
    assert set(frontend.unselectable_token_ids()) == media | set(range(rows, rows + PADDING))
    assert frontend.addressable_tokens == rows
    assert frontend.eos_ids == {library.token_to_id("<|endoftext|>"), library.token_to_id("<|im_end|>")}


def test_holes_and_tokens_named_only_by_the_config() -> None:
    resources = small_resources()
    size = library_tokenizer().get_vocab_size()
    config = {
        "eos_token": {"content": "<|im_end|>"},
        "image_token": "<|picture|>",
        "added_tokens_decoder": {
            str(size + 2): {"content": "<|late|>", "special": True},
            str(size + 3): {"content": "<|picture|>", "special": True},
        },
    }
    tokenizer = Tokenizer({**resources, "tokenizer_config.json": json.dumps(config).encode()}, size + 5)
    assert tokenizer.addressable == size + 4
    assert {size, size + 1, size + 3, size + 4} <= set(tokenizer.unselectable)
    assert size + 2 not in tokenizer.unselectable
    assert not tokenizer.has_text(size)
    assert [span.token_id for span in tokenizer.find_controls("a<|late|>")] == [size + 2]


@pytest.mark.parametrize(
    ("role", "content", "message"),
    [
        ("tokenizer.json", b"{", "tokenizer.json"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json: must be a JSON object"),
        ("generation_config.json", b"nope", "generation_config.json: not valid JSON"),
        ("generation_config.json", b'{"eos_token_id": 99999}', "eos_token_id: 99999"),
        ("generation_config.json", b'{"eos_token_id": [true]}', "eos_token_id: True"),
        ("generation_config.json", b'{"top_p": 7}', "generation_config.json: top_p: 7"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder.x"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template: must be a string"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: not valid UTF-8"),
        ("chat_template.jinja", b"\n{% if %}", "chat_template.jinja: line 2"),
    ],
)
def test_a_broken_resource_is_named(role: str, content: bytes, message: str) -> None:
    resources = small_resources()
    if "template" in message and role == "tokenizer_config.json":
        del resources["chat_template.jinja"]
    with pytest.raises(ConfigError) as caught:
        Frontend({**resources, role: content}, 1000)
    assert message in str(caught.value)


def test_a_vocabulary_larger_than_the_model_and_odd_tokens_are_refused() -> None:
    resources = small_resources()
    with pytest.raises(ConfigError, match="beyond the model's vocabulary of 300 rows"):
        Tokenizer(resources, 300)
    with pytest.raises(ConfigError, match="no such resource"):
        Tokenizer({}, 300)
    odd = library_tokenizer()
    odd.add_tokens([AddedToken("<odd>", lstrip=True)])
    with pytest.raises(ConfigError, match="'<odd>': lstrip"):
        Tokenizer({"tokenizer.json": odd.to_str().encode()}, 1000)
