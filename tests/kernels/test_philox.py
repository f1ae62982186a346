"""Philox4x32-10 against the known answers published with Random123, and the uniform it feeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.kernels.philox import Purpose, philox4x32, uniform

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, int, int, int], key: tuple[int, int], answer: str) -> None:
    assert " ".join(f"{word:08x}" for word in philox4x32(counter, key)) == answer


def test_uniform_is_made_of_the_first_two_words() -> None:
    assert uniform(0, 0, Purpose.TOKEN) == ((0x6627E8D5E169C58D >> 12) + 0.5) / 2**52


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**64 - 1), purpose=st.sampled_from(list(Purpose)))
def test_uniform_is_inside_the_open_interval_and_repeats(seed: int, position: int, purpose: Purpose) -> None:
    value = uniform(seed, position, purpose)
    assert 0.0 < value < 1.0
    assert value == uniform(seed, position, purpose)


def test_streams_differ_by_seed_position_and_purpose() -> None:
    values = {uniform(s, p, q) for s in (0, 1, 2**32, 2**63) for p in (0, 1, 2**32) for q in Purpose}
    assert len(values) == 4 * 3 * len(Purpose)


def test_uniform_is_flat() -> None:
    counts, _ = np.histogram([uniform(7, i, Purpose.TOKEN) for i in range(20000)], bins=20, range=(0, 1))
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8  # chi-square, 19 degrees, p = 0.001


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
def test_refuses_what_does_not_fit_64_bits(seed: int, position: int) -> None:
    with pytest.raises(ValueError, match="2\\*\\*64"):
        uniform(seed, position, Purpose.TOKEN)
