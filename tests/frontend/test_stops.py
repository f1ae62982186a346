"""StopStrings against plain searches of the whole text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.frontend.stops import StopStrings

WORDS = st.text(st.sampled_from("ab"), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(
    strings=st.lists(WORDS, max_size=3).map(tuple),
    pieces=st.lists(st.text(st.sampled_from("abc"), max_size=6), max_size=6),
)
def test_the_first_complete_stop_wins_however_the_text_is_cut(strings: tuple[str, ...], pieces: list[str]) -> None:
    text = "".join(pieces)
    wanted = min(((text.find(s) + len(s), -len(s)) for s in strings if s in text), default=None)
    stops, before = StopStrings(strings), 0
    state, hit = stops.start, None
    for piece in pieces:
        state, hit = stops.feed(state, piece)
        if hit is not None:
            break
        before += len(piece)
        seen = text[:before]
        could = [n for s in strings for n in range(1, len(s)) if seen.endswith(s[:n])]
        assert max(state, default=0) == max(could, default=0)
    assert wanted == (None if hit is None else (before + hit.end, -hit.length))
