"""The reduced proposal head: which tokens it takes, and that its rows are those of the head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact.directory import Proposal, ProposalDomain
from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import convert
from ninfer.convert.qwen3_5.proposal import proposal_tokens, read_ranking
from ninfer.errors import ConfigError
from tests.checkpoints import ADDED_TOKENS, SPECIAL_TOKENS, Checkpoint
from tests.convert.expected import decoded_as, logical_parameters


def tokenizer_ids(checkpoint: Checkpoint) -> tuple[int, set[int]]:
    value = json.loads((checkpoint.path / "tokenizer.json").read_text())
    added = {token["id"] for token in value["added_tokens"]}
    return max(max(value["model"]["vocab"].values()), *added) + 1, added


@pytest.mark.parametrize(("recipe", "fmt"), [("groupwise", "q4_g64_fp16"), ("bf16", "bf16")])
def test_rows_are_those_of_the_head(dense: Checkpoint, tmp_path: Path, recipe: str, fmt: str) -> None:
    ranking = tmp_path / "ranking.txt"
    ranking.write_text("\n".join(str(token) for token in (300, 17, 200, 5)))
    convert(dense.path, tmp_path / "m.ninfer", recipe=recipe, proposal=14, proposal_ranking=ranking)
    _, added = tokenizer_ids(dense)
    assert len(added) == len(SPECIAL_TOKENS) + len(ADDED_TOKENS) == 11
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        ids = reader.decode_parameter("proposal/token_ids")
        assert set(ids.tolist()) == added | {300, 17, 200}
        assert ids.dtype == np.int32
        head = logical_parameters(dense.tensors, dense.config["text_config"], tied=False)["text/output_head"]
        np.testing.assert_array_equal(reader.decode_parameter("proposal/head"), decoded_as(head[ids], fmt))
        assert reader.directory.components["text"].proposal == Proposal(ProposalDomain.INDEXED, 14)
        uses = [use.input for use in reader.directory.uses if use.parameter == "proposal/head"]
    assert uses == ["mtp/final_hidden"]


def test_token_order_stands_in_for_a_ranking(moe: Checkpoint, tmp_path: Path) -> None:
    convert(moe.path, tmp_path / "m.ninfer", recipe="q8", proposal=100)
    _, added = tokenizer_ids(moe)
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        ids = reader.decode_parameter("proposal/token_ids").tolist()
    assert ids == sorted(added | set(range(100 - len(added))))


@given(
    addressable=st.integers(1, 60),
    data=st.data(),
)
def test_tokens_are_unique_addressable_and_complete(addressable: int, data: st.DataObject) -> None:
    special = data.draw(st.lists(st.integers(0, addressable - 1), unique=True))
    rows = data.draw(st.integers(max(1, len(special)), addressable))
    tokens = proposal_tokens(rows, addressable, special, None)
    assert len(tokens) == len(set(tokens)) == rows
    assert set(special) <= set(tokens) <= set(range(addressable))
    assert list(tokens) == sorted(tokens)


@pytest.mark.parametrize("rows", [0, 10, 352])
def test_row_counts_out_of_range(dense: Checkpoint, tmp_path: Path, rows: int) -> None:
    addressable, added = tokenizer_ids(dense)
    with pytest.raises(ConfigError, match=f"expected between {len(added)} and {addressable} rows"):
        convert(dense.path, tmp_path / "m.ninfer", proposal=rows if rows < 300 else addressable + 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "ranking"),
    [
        ("3\n1\n2\n", (3, 1, 2)),
        ("1 5\n2 50\n0 50\n7 0.5\n", (0, 2, 1, 7)),
        ("4,10\n5,20\n", (5, 4)),
        ("[9, 8, 7]", (9, 8, 7)),
        ('{"3": 1, "4": 2}', (4, 3)),
        ("9 0\n3 0\n1 4\n", (1, 9, 3)),
    ],
)
def test_ranking_files(tmp_path: Path, text: str, ranking: tuple[int, ...]) -> None:
    (tmp_path / "r").write_text(text)
    assert read_ranking(tmp_path / "r", 10) == ranking


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one id per line"),
        ("1\n2 3\n", "expected one id per line, or `id count` on every line"),
        ("1\nx\n", "line 2: expected numbers, found 'x'"),
        ("1\n1\n", "line 2: token 1 is listed twice"),
        ("10\n", "line 1: token 10 is not within the 10 addressable tokens"),
        ("-1\n", "token -1 is not within"),
        ("[1, 2", "not valid JSON"),
        ("[]", "ranking is empty"),
    ],
)
def test_bad_ranking_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_ranking(tmp_path / "r", 10)
    with pytest.raises(ConfigError, match="cannot read the proposal ranking"):
        read_ranking(tmp_path / "absent", 10)
