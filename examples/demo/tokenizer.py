"""Trains the demo's byte-level BPE tokenizer.

Merges are learnt on text whose blanks, letters, digits and signs are kept apart; merges of a blank with a
frequent whole word are appended last. So a rare name is split alike after a blank, a quote or a newline,
which is what lets so small a model copy it.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

from data import is_held_out
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

WORD_MERGES = 1330
BLANK_MERGES = 429
BLANK = "Ġ"
PRE_TOKENIZE_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LEARNING_REGEX = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|[\r\n]+| |\s+"
QWEN_ADDED_TOKENS = (
    *((f"<|{name}|>", True) for name in (
        "endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end",
        "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")),
    ("<tool_call>", False), ("</tool_call>", False),
    *((f"<|{name}|>", False) for name in (
        "fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")),
    ("<tool_response>", False), ("</tool_response>", False), ("<think>", False), ("</think>", False),
    ("<|audio_start|>", True), ("<|audio_end|>", True), ("<tts_pad>", True), ("<tts_text_bos>", True),
    ("<tts_text_eod>", True), ("<tts_text_bos_single>", True), ("<|audio_pad|>", True),
)  # fmt: skip


def read_chapters(path: Path | None) -> tuple[list[str], list[str]]:
    """Return (training, held-out) chapters of the King James text.

    Without a path the text comes from the `bible` program (Debian package bible-kjv-text); a path names a
    file with its output: one verse per line, "Ge1:1 In the beginning ...".
    """
    if path is None:
        command = ["bible", "-f", "Gen1:1-Rev22:21"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    else:
        text = path.read_text(encoding="utf-8")
    chapters: dict[str, list[str]] = {}
    for line in text.splitlines():
        reference, _, verse = line.partition(" ")
        chapters.setdefault(reference.partition(":")[0], []).append(verse.strip())
    joined = {name: "\n".join(verses) for name, verses in chapters.items()}
    held_out = [text for name, text in joined.items() if is_held_out(name)]
    return [text for name, text in joined.items() if not is_held_out(name)], held_out


def learn_merges(corpus: list[str]) -> list[tuple[str, str]]:
    """Learn `WORD_MERGES` merges that never cross from a blank or a sign into a word."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LEARNING_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=256 + WORD_MERGES, initial_alphabet=alphabet, show_progress=False, max_token_length=14
    )
    learner.train_from_iterator(corpus, trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def build(merges: list[tuple[str, str]]) -> Tokenizer:
    """Assemble a tokenizer like Qwen's from byte symbols, merges and Qwen's added tokens."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet()) + [left + right for left, right in merges]
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZE_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    for content, special in QWEN_ADDED_TOKENS:
        token = AddedToken(content, normalized=False, special=special)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    return tokenizer


def frequent_words(tokenizer: Tokenizer, corpus: list[str]) -> list[str]:
    """Return the symbols that most often follow a blank as a whole pre-token."""
    counts: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    for text in corpus:
        pieces.update(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    for piece, count in pieces.items():
        word = piece[1:]
        mergeable = len(word) > 1 or word in "aIO" or not word.isalnum()
        if piece.startswith(BLANK) and word and mergeable and tokenizer.token_to_id(word) is not None:
            counts[word] += count
    return [word for word, _ in counts.most_common(BLANK_MERGES)]


def train_tokenizer(corpus: list[str]) -> Tokenizer:
    """Train on `corpus`; the result has 256 + 1759 BPE entries and 33 added tokens: 2048 in all."""
    merges = learn_merges(corpus)
    words = frequent_words(build(merges), corpus)
    tokenizer = build(merges + [(BLANK, word) for word in words])
    assert tokenizer.get_vocab_size() == 256 + WORD_MERGES + BLANK_MERGES + len(QWEN_ADDED_TOKENS)
    return tokenizer


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    """Return tokenizer_config.json, with the same fields as Qwen's."""
    added = {
        str(tokenizer.token_to_id(content)): {
            "content": content, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": special,
        }
        for content, special in QWEN_ADDED_TOKENS
    }  # fmt: skip
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [content for content, special in QWEN_ADDED_TOKENS[1:14] if special],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "pretokenize_regex": PRE_TOKENIZE_REGEX,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
