"""What pairs of state slots may be: the domain of the ops that carry state."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.slots import ZERO, StateSlots, check_slots, take_starts


def test_data_holds_sources_and_targets() -> None:
    slots = StateSlots((ZERO, 4), (2, 4))
    assert slots.data.dtype is torch.int32
    assert slots.data.tolist() == [[-1, 4], [2, 4]]


def test_rows_may_share_a_source() -> None:
    StateSlots((0, 0, ZERO, ZERO), (1, 2, 3, 4))


def test_no_row_writes_what_another_row_reads() -> None:
    with pytest.raises(ValueError, match="target 0 of row 0 is another row's source"):
        StateSlots((1, 0), (0, 1))
    with pytest.raises(ValueError, match="target 0 of row 1 is another row's source"):
        StateSlots((0, 0), (1, 0))


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ((0, 1), (1, 1), "targets must be distinct"),
        ((0,), (1, 2), "1 sources but 2 targets"),
        ((-2,), (0,), "sources must be >= -1"),
        ((0,), (ZERO,), "targets >= 0"),
    ],
)
def test_bad_slots_are_refused(sources: tuple[int, ...], targets: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StateSlots(sources, targets)


def test_slots_are_checked_against_store_and_batch() -> None:
    check_slots("op", 3, 1, StateSlots((2,), (1,)))
    with pytest.raises(ValueError, match=r"op: slots must have one pair per row \(2\), got 1"):
        check_slots("op", 3, 2, StateSlots((2,), (1,)))
    with pytest.raises(ValueError, match="op: slots must lie below 2"):
        check_slots("op", 2, 1, StateSlots((2,), (1,)))


def test_starts_are_copied_or_zero() -> None:
    store = torch.arange(4.0)[:, None].clone()
    take_starts(store, StateSlots((3, ZERO, 2), (0, 1, 2)))
    assert store[:, 0].tolist() == [3.0, 0.0, 2.0, 3.0]
