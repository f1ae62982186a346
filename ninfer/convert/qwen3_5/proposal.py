"""Which tokens the reduced proposal head covers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ninfer.errors import ConfigError


def proposal_tokens(rows: int, addressable: int, special: Sequence[int], ranking: Path | None) -> tuple[int, ...]:
    """`rows` distinct token ids in increasing order: the special ones, then the most frequent.

    Without a ranking, token-id order stands for frequency: BPE numbers its tokens in merge order.

    Raises:
        ConfigError: `rows` is not between the number of special tokens and `addressable`, or a bad ranking file.
    """
    if not max(1, len(special)) <= rows <= addressable:
        raise ConfigError(f"--proposal {rows}: expected between {max(1, len(special))} and {addressable} rows")
    ranked = read_ranking(ranking, addressable) if ranking is not None else ()
    order = dict.fromkeys((*special, *ranked))
    for token in range(addressable):
        if len(order) >= rows:
            break
        order.setdefault(token)
    return tuple(sorted(list(order)[:rows]))


def read_ranking(path: Path, addressable: int) -> tuple[int, ...]:
    """Token ids of a ranking file, most frequent first.

    Lines (or a JSON list) of ids stand in order of frequency; lines `id count` (or a JSON object) are sorted
    by count, ties by id.

    Raises:
        ConfigError: names file and line: not a number, an id twice, or an id that no token has.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the proposal ranking: {error}") from error
    entries = _json_entries(path, text) if text.lstrip()[:1] in ("[", "{") else _line_entries(path, text)
    seen: set[int] = set()
    for where, token, _ in entries:
        if not 0 <= token < addressable or token in seen:
            problem = "is listed twice" if token in seen else f"is not within the {addressable} addressable tokens"
            raise ConfigError(f"{path}: {where}: token {token} {problem}")
        seen.add(token)
    if not entries:
        raise ConfigError(f"{path}: the proposal ranking is empty")
    # Python's sort is stable, so a file of ids (all counts equal) keeps its own order.
    by_count = sorted(entries, key=lambda entry: (-entry[2], entry[1] if entry[2] else 0))
    return tuple(token for _, token, _ in by_count)


Entry = tuple[str, int, float]
"""Where it stands, the token id, and its count (0 in a file of ids)."""


def _line_entries(path: Path, text: str) -> list[Entry]:
    lines = [(number, line.replace(",", " ").split()) for number, line in enumerate(text.splitlines(), 1)]
    widths = {len(fields) for _, fields in lines if fields}
    if len(widths) != 1 or not widths <= {1, 2}:
        raise ConfigError(f"{path}: expected one id per line, or `id count` on every line")
    return [_entry(path, f"line {number}", fields) for number, fields in lines if fields]


def _json_entries(path: Path, text: str) -> list[Entry]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    pairs: Iterable[list[object]] = [[item] for item in value] if isinstance(value, list) else map(list, value.items())
    return [_entry(path, f"entry {number}", fields) for number, fields in enumerate(pairs)]


def _entry(path: Path, where: str, fields: Sequence[object]) -> Entry:
    try:
        return where, int(str(fields[0])), float(str(fields[1])) if len(fields) == 2 else 0.0
    except ValueError:
        raise ConfigError(f"{path}: {where}: expected numbers, found {' '.join(map(str, fields))!r}") from None
