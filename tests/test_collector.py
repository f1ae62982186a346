"""The collector is left as it was found, whatever happens while it pauses."""

from __future__ import annotations

import gc

import pytest

from ninfer.collector import collector_paused


def test_it_pauses_and_goes_on() -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(RuntimeError), collector_paused():
        raise RuntimeError
    assert gc.isenabled()


def test_who_had_stopped_it_keeps_it_stopped() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
