"""Strict parsing of the directory: a valid one round-trips, and each rule of the grammar has a hostile case."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact.directory import (
    ActivationPolicy,
    Component,
    Directory,
    FileEntry,
    Part,
    PartsBinding,
    Proposal,
    ProposalDomain,
    ResourceObject,
    TensorObject,
    Use,
    WholeBinding,
    tensor_geometry,
)
from ninfer.artifact.directory_json import directory_to_json, parse_directory
from ninfer.errors import ArtifactError

U64 = 2**64
VALID: dict[str, Any] = {
    "components": {
        "text": {"config": {"a": 1.5}, "resources": {"tok": "r"}, "proposal": {"domain": "indexed", "rows": 5}},
        "mtp": {"config": {}, "target": "text"},
    },
    "objects": [
        {
            "id": "w",
            "kind": "tensor",
            "shape": [4, 128],
            "format": "q4_g64_fp16",
            "layout": "row_split_k128_v1",
            "offset": 0,
            "bytes": 272,
        },
        {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 272, "bytes": 5},
        {
            "id": "n",
            "kind": "tensor",
            "shape": [],
            "format": "fp32",
            "layout": "contiguous_le_v1",
            "offset": 512,
            "bytes": 4,
        },
    ],
    "bindings": {
        "text/w": {"object": "w"},
        "text/q": {"parts": [{"object": "w", "range": [0, 128]}, {"object": "w", "range": [256, 512]}]},
        "text/n": {"object": "n"},
    },
    "uses": [
        {
            "parameter": "text/w",
            "input": "x",
            "activation_policy": "AllowA8",
            "auxiliaries": {"activation_input_divisor": {"object": "n"}},
        },
        {"parameter": "text/w", "input": "y"},
    ],
    "files": [{"path": None, "payload_bytes": 500}, {"path": "m.ninfer.part-0001", "payload_bytes": 16}],
    "metadata": {"name": "m", "anything": [1, None]},
    "provenance": {"x": {}},
}


def parse(root: object) -> Directory:
    return parse_directory(json.dumps(root).encode(), "folder/m.ninfer")


def test_the_valid_directory_parses_to_the_typed_model() -> None:
    directory = parse(VALID)
    assert directory == Directory(
        components={
            "text": Component({"a": 1.5}, None, {"tok": "r"}, Proposal(ProposalDomain.INDEXED, 5)),
            "mtp": Component({}, "text"),
        },
        objects=(
            TensorObject("w", (4, 128), "q4_g64_fp16", "row_split_k128_v1", 0, 272),
            ResourceObject("r", 272, 5),
            TensorObject("n", (), "fp32", "contiguous_le_v1", 512, 4),
        ),
        bindings={
            "text/w": WholeBinding("w"),
            "text/q": PartsBinding((Part("w", 0, 128), Part("w", 256, 512))),
            "text/n": WholeBinding("n"),
        },
        uses=(
            Use("text/w", "x", ActivationPolicy.ALLOW_A8, {"activation_input_divisor": WholeBinding("n")}),
            Use("text/w", "y", None),
        ),
        files=(FileEntry(None, 500), FileEntry("m.ninfer.part-0001", 16)),
        metadata={"name": "m", "anything": [1, None]},
        provenance={"x": {}},
    )
    assert directory.elements(directory.binding("text/q")) == 384
    assert directory.parts(directory.binding("text/w")) == (Part("w", 0, 512),)
    assert directory.payload_bytes == 516
    assert directory.name == "m"


def test_serialising_is_the_inverse_of_parsing() -> None:
    assert json.loads(directory_to_json(parse(VALID))) == VALID
    full = copy.deepcopy(VALID)
    full["components"]["text"]["proposal"] = {"domain": "full"}
    del full["metadata"], full["provenance"]
    assert json.loads(directory_to_json(parse(full))) == full
    assert parse(full).name is None


def edit(path: str, value: object) -> Callable[[Any], None]:
    """Set (or, for `...`, delete) the member at a dotted path; integers index arrays."""

    def apply(root: Any) -> None:
        *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        for step in parents:
            root = root[step]
        if value is ...:
            del root[last]
        else:
            root[last] = value

    return apply


HOSTILE: list[tuple[str, object, str]] = [
    # root members and their types
    ("components", ..., r"\$: the member 'components' is missing"),
    ("objects", ..., r"'objects' is missing"),
    ("bindings", ..., r"'bindings' is missing"),
    ("uses", ..., r"'uses' is missing"),
    ("files", ..., r"'files' is missing"),
    ("extra", 1, r"\$: unknown member 'extra'"),
    ("components", [], r"\$\.components: expected an object, got an empty array"),
    ("objects", {}, r"\$\.objects: expected a non-empty array, got an object"),
    ("objects", [], r"non-empty array"),
    ("files", [], r"\$\.files: expected a non-empty array"),
    ("bindings", None, r"expected an object, got null"),
    ("uses", True, r"expected an array, got true"),
    ("metadata", 3, r"\$\.metadata: expected an object, got 3"),
    ("provenance", "x", r"\$\.provenance: expected an object, got 'x'"),
    ("metadata.name", "", r"\$\.metadata\.name: expected a non-empty string"),
    ("metadata.name", 5, r"\$\.metadata\.name: expected a non-empty string"),
    # files
    ("files.0.path", "m", r"\$\.files\[0\]\.path: expected null"),
    ("files.1.path", None, r"\$\.files\[1\]\.path"),
    ("files.1.path", "", r"files\[1\]\.path"),
    ("files.1.path", "a/b", r"plain file name"),
    ("files.1.path", "a\\b", r"plain file name"),
    ("files.1.path", ".", r"plain file name"),
    ("files.1.path", "..", r"plain file name"),
    ("files.1.path", "a\0", r"U\+0000"),
    ("files.1.path", "m.ninfer", r"used twice"),
    ("files.1.more", 1, r"unknown member 'more'"),
    ("files.1.payload_bytes", 0, r"integer in \[1,"),
    ("files.1.payload_bytes", 1.0, r"integer in .*got 1\.0"),
    ("files.1.payload_bytes", 1e3, r"integer in .*got 1000\.0"),
    ("files.1.payload_bytes", True, r"got true"),
    ("files.1.payload_bytes", "16", r"got '16'"),
    ("files.1.payload_bytes", U64, r"2\^64-1"),
    ("files.1.payload_bytes", U64 - 1, r"sum of payload_bytes exceeds"),
    # components
    ("components.text", ..., r"\$\.components: the component 'text' is missing"),
    ("components.text.config", ..., r"\$\.components\.text: the member 'config'"),
    ("components.text.config", [], r"\$\.components\.text\.config: expected an object"),
    ("components.text.weights", {}, r"unknown member 'weights'"),
    ("components.mtp.target", "vision", r"\$\.components\.mtp: the target 'vision' is not a component"),
    ("components.mtp.target", 1, r"components\.mtp\.target"),
    ("components.mtp.proposal", {"domain": "full"}, r"only the component 'text' may have a proposal"),
    ("components.text.proposal", {"domain": "half"}, r"proposal\.domain: expected one of full, indexed"),
    ("components.text.proposal", {"domain": "full", "rows": 3}, r"unknown member 'rows'"),
    ("components.text.proposal", {"domain": "indexed"}, r"'rows' is missing"),
    ("components.text.proposal", {"domain": "indexed", "rows": 0}, r"integer in \[1"),
    ("components.text.proposal", {}, r"'domain' is missing"),
    ("components.text.resources", {"tok": "w"}, r"resources\.tok: expected the ID of a resource object"),
    ("components.text.resources", {"tok": "gone"}, r"ID of a resource object"),
    ("components.text.resources", {"": "r"}, r"member names must be non-empty"),
    ("components.text.resources", ["r"], r"resources: expected an object"),
    ("components.a\0b", {"config": {}}, r"U\+0000"),
    # objects
    ("objects.0.id", ..., r"\$\.objects\[0\]: the member 'id' is missing"),
    ("objects.0.id", "", r"objects\[0\]\.id: expected a non-empty string"),
    ("objects.0.id", "a\0b", r"U\+0000"),
    ("objects.0.id", "n", r"objects\[2\]: the object ID 'n' is used twice"),
    ("objects.1.id", "w", r"used twice"),
    ("objects.0.kind", "tensors", r"objects\[0\]\.kind: expected one of tensor, resource"),
    ("objects.0.kind", ["tensor"], r"kind: expected one of"),
    ("objects.0.kind", ..., r"'kind' is missing"),
    ("objects.0.device", 0, r"unknown member 'device'"),
    ("objects.1.shape", [1], r"unknown member 'shape'"),
    ("objects.1.encoding", ..., r"'encoding' is missing"),
    ("objects.0.shape", [4, 0], r"shape\[1\]: expected an integer in \[1"),
    ("objects.0.shape", [4, -1], r"shape\[1\]"),
    ("objects.0.shape", [4, 128.0], r"shape\[1\].*got 128\.0"),
    ("objects.0.shape", "4", r"shape: expected an array"),
    ("objects.0.shape", [1] * 17, r"at most 16 dimensions"),
    ("objects.0.shape", [2**32, 2**32], r"number of elements exceeds"),
    ("objects.0.format", 4, r"objects\[0\]\.format"),
    ("objects.0.layout", None, r"objects\[0\]\.layout"),
    ("objects.0.offset", -256, r"offset: expected an integer in \[0"),
    ("objects.2.offset", 516, r"objects\[2\]\.offset: expected a multiple of 256"),
    ("objects.1.offset", 271, r"objects\[1\]: offset 271 is below 272"),
    ("objects.2.offset", 256, r"objects\[2\]: offset 256 is below 277"),
    ("objects.0.bytes", 0, r"bytes: expected an integer in \[1"),
    ("objects.2.bytes", 5, r"objects\[2\]: the object ends at byte 517, beyond the payload of 516"),
    ("objects.0.bytes", U64 - 1, r"beyond the payload|exceeds 2\^64"),
    ("objects.2.offset", U64 - 256, r"beyond the payload|exceeds 2\^64"),
    ("objects.1.bytes", 0, r"objects\[1\]\.bytes"),
    # bindings
    ("bindings.text/w", {"object": "gone"}, r'\$\.bindings\["text/w"\]\.object: expected the ID of a tensor'),
    ("bindings.text/w", {"object": "r"}, r"ID of a tensor object"),
    ("bindings.text/w", {"object": ["w"]}, r"non-empty string"),
    ("bindings.text/w", {}, r"'object' is missing"),
    ("bindings.text/w", "w", r"expected an object"),
    ("bindings.text/w", {"object": "w", "parts": []}, r"unknown member 'object'"),
    ("bindings.text/w", {"object": "w", "shape": [1]}, r"unknown member 'shape'"),
    ("bindings.text/q.parts", [], r"non-empty array"),
    ("bindings.text/q.parts.0.object", "gone", r"parts\[0\]\.object: expected the ID of a tensor"),
    ("bindings.text/q.parts.0.range", [0], r"range: expected \[begin, end\]"),
    ("bindings.text/q.parts.0.range", [0, 1, 2], r"range: expected \[begin, end\]"),
    ("bindings.text/q.parts.0.range", [5, 5], r"begin < end"),
    ("bindings.text/q.parts.0.range", [6, 5], r"begin < end"),
    ("bindings.text/q.parts.0.range", [0, 513], r"<= 512, the elements of 'w'"),
    ("bindings.text/q.parts.0.range", [-1, 5], r"range\[0\]"),
    ("bindings.text/q.parts.0.range", [0, 5.0], r"range\[1\]"),
    ("bindings.text/q.parts.0.stride", 1, r"unknown member 'stride'"),
    ("bindings.", {"object": "w"}, r"member names must be non-empty"),
    # uses
    ("uses.0.parameter", "text/gone", r"uses\[0\]\.parameter: expected a parameter named in bindings"),
    ("uses.0.parameter", ..., r"'parameter' is missing"),
    ("uses.0.input", ..., r"'input' is missing"),
    ("uses.0.input", "", r"uses\[0\]\.input"),
    ("uses.1.input", "x", r"uses\[1\]: the use of 'text/w' with input 'x' appears twice"),
    ("uses.0.activation_policy", "A8", r"expected one of A16Only, AllowA8, AllowA4"),
    ("uses.0.activation_policy", None, r"expected one of A16Only, AllowA8, AllowA4"),
    ("uses.0.activation_policy", ["A16Only"], r"expected one of"),
    ("uses.0.auxiliaries", [], r"auxiliaries: expected an object"),
    ("uses.0.auxiliaries", {"hadamard_signs": {"object": "r"}}, r"hadamard_signs\.object: expected the ID of a tensor"),
    ("uses.0.auxiliaries", {"": {"object": "n"}}, r"non-empty"),
    ("uses.0.when", 1, r"unknown member 'when'"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), HOSTILE)
def test_each_rule_refuses_its_violation(path: str, value: object, message: str) -> None:
    root = copy.deepcopy(VALID)
    edit(path, value)(root)
    with pytest.raises(ArtifactError, match=message) as caught:
        parse(root)
    assert str(caught.value).startswith("folder/m.ninfer: $")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "expected an object"),
        (b"null", "expected an object, got null"),
        (b"{} {}", "not valid JSON"),
        (b"\xff{}", "not valid UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not valid UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
        (b'{"metadata": {"a": NaN}}', "NaN is not a JSON number"),
        (b'{"metadata": {"a": -Infinity}}', "not a JSON number"),
        (b'{"metadata": {"a": 1e999}}', "beyond the range"),
        (b'{"a": 1, "a": 1}', r"\$: the member 'a' appears twice"),
        (b'{"metadata": {"x": [{"b": 1, "c": 2, "b": 3}]}}', r"\$\.metadata\.x\[0\]: the member 'b' appears twice"),
        (b'{"metadata": {"a": "\\ud800"}}', r"\$\.metadata\.a: .*lone surrogate"),
        (b'{"metadata": {"\\uDFFF": 1}}', r"\$\.metadata: .*lone surrogate"),
        (b'{"metadata": ' + b"[" * 200_000, "nests too deeply|not valid JSON"),
        (b"[" * 200_000 + b"]" * 200_000, "nests too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nests too deeply"),
        (b'{"metadata": {"a": ' + b"9" * 10_000 + b"}}", "not valid JSON"),
    ],
)
def test_hostile_json_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        parse_directory(text, "m.ninfer")


def test_escaped_surrogate_pairs_are_fine() -> None:
    text = json.dumps(VALID).replace('"name": "m"', '"name": "\\ud83d\\ude00"')
    assert parse_directory(text.encode(), "m.ninfer").name == "😀"


def test_trailing_white_space_is_allowed() -> None:
    assert parse_directory(json.dumps(VALID).encode() + b" \n\t\r" * 9, "m.ninfer") == parse(VALID)


def test_unknown_formats_and_layouts_parse_and_fail_only_when_decoded() -> None:
    root = copy.deepcopy(VALID)
    root["objects"][0]["format"] = "q3_g64_fp16"
    root["objects"][1]["encoding"] = "zstd_v1"
    root["objects"][2]["layout"] = "tiled_v9"
    directory = parse(root)
    with pytest.raises(ArtifactError, match=r"'w': this release does not know the format 'q3_g64_fp16'"):
        tensor_geometry(directory.tensor("w"))
    with pytest.raises(ArtifactError, match=r"'n': this release does not know the layout 'tiled_v9'"):
        tensor_geometry(directory.tensor("n"))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorObject("w", (4, 128), "q4_g64_fp16", "row_split_k128_v1", 0, 271), "takes 272 bytes.*says 271"),
        (TensorObject("w", (4, 128), "q4_g64_fp16", "contiguous_le_v1", 0, 272), "is stored as row_split"),
        (TensorObject("w", (512,), "q4_g64_fp16", "row_split_k128_v1", 0, 272), "matrices"),
        (TensorObject("w", (2**63, 1), "fp32", "contiguous_le_v1", 0, 4), "2\\^64"),
    ],
)
def test_object_geometry_is_checked_when_decoded(tensor: TensorObject, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        tensor_geometry(tensor)


def test_lookups_name_what_is_missing() -> None:
    directory = parse(VALID)
    with pytest.raises(ArtifactError, match="no object 'gone'"):
        directory.object("gone")
    with pytest.raises(ArtifactError, match="'r' is a resource"):
        directory.tensor("r")
    with pytest.raises(ArtifactError, match="binds no parameter 'gone'"):
        directory.binding("gone")


def test_activation_policies_permit_widths() -> None:
    widths = {policy.value: sorted(policy.widths) for policy in ActivationPolicy}
    assert widths == {"A16Only": [16], "AllowA8": [8, 16], "AllowA4": [4, 8, 16]}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_random_edits_parse_or_raise_artifact_error(data: st.DataObject) -> None:
    root = copy.deepcopy(VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        node: Any = root
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
                node[key] = data.draw(JSON_VALUES)
                break
            node = node[key]
    try:
        directory = parse(root)
    except ArtifactError:
        return
    assert parse_directory(directory_to_json(directory), "folder/m.ninfer") == directory
