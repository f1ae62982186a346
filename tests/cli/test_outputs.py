"""Output files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import pytest

from ninfer.cli.failures import CommandError
from ninfer.cli.outputs import whole_file, write_text


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    write_text(path, "new é\n")
    assert path.read_bytes() == "new é\n".encode()
    assert [item.name for item in tmp_path.iterdir()] == ["out.json"]


def _half_written(stream: TextIO, failure: type[BaseException]) -> None:
    stream.write("half")
    stream.flush()
    raise failure


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(failure), whole_file(path) as stream:
        _half_written(stream, failure)
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["out.json"]


def test_a_folder_or_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="directory"):
        write_text(tmp_path, "x")
    with pytest.raises(CommandError, match="does not exist"):
        write_text(tmp_path / "no" / "x", "x")
