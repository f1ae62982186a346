"""The public names of the package."""

from __future__ import annotations

import ninfer


def test_every_public_name_loads_from_its_home() -> None:
    assert [getattr(ninfer, name).__name__ for name in ninfer.__all__] == list(ninfer.__all__)
    assert set(ninfer.__all__) <= set(dir(ninfer))
