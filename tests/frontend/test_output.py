"""OutputSession against a plain reference, for every way of cutting an answer into tokens and spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.frontend import Frontend
from ninfer.types import Channel, Delta, FinishReason, StopConditions
from tests.frontend.answers import Answer, Reference, answer, carried, logprob, run, session, shown
from tests.frontend.models import byte_tokens

PLAIN = ["a", "b", "\n", " ", "x", "é", "🙂", "漢", "<", "ab", "\ufffd"]
CONTROL = ["<think>", "</think>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "<|vision_start|>"]


def ids_of(frontend: Frontend, *texts: str) -> list[int]:
    """Token ids, control tokens recognised."""
    tokenizer = frontend.tokenizer
    return [i for text in texts for i in tokenizer.encode(text, tokenizer.find_controls(text)).token_ids]


def byte_ids(text: str) -> list[int]:
    """One token per byte: the finest way to say a text."""
    return [byte_tokens()[byte] for byte in text.encode()]


@st.composite
def token_lists(draw: st.DrawFn, frontend: Frontend) -> list[int]:
    """Tokens that meet often: bytes of a few characters (so also halves of them), merges, tags, control tokens."""
    pool = sorted({i for text in PLAIN for i in byte_ids(text)})
    pieces = st.one_of(
        st.sampled_from(pool).map(lambda i: [i]),
        st.sampled_from(PLAIN).map(lambda text: byte_ids(text)),
        st.sampled_from(CONTROL).map(lambda text: ids_of(frontend, text)),
        st.text(st.sampled_from("ab\n"), min_size=1, max_size=5).map(lambda text: ids_of(frontend, text)),
    )
    return [i for piece in draw(st.lists(pieces, min_size=1, max_size=12)) for i in piece]


@st.composite
def spans_of(draw: st.DrawFn, ids: Sequence[int]) -> list[list[int]]:
    """Cut into decode spans of any length."""
    cuts = sorted(draw(st.sets(st.integers(1, len(ids) - 1)))) if len(ids) > 1 else []
    return [list(ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


STOPS = st.builds(
    StopConditions,
    strings=st.lists(st.text(st.sampled_from("ab\n🙂<\ufffd"), min_size=1, max_size=4), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    in_thinking=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), stops=STOPS, thinking=st.booleans())
def test_every_way_of_cutting_gives_the_reference_answer(
    frontend: Frontend, data: st.DataObject, stops: StopConditions, thinking: bool
) -> None:
    ids = data.draw(token_lists(frontend))
    expected = Reference(frontend.tokenizer, stops, thinking).answer(ids)
    events, finished = run(session(frontend, stops, thinking), data.draw(spans_of(ids)))
    got = Answer(shown(events, Channel.REASONING), shown(events, Channel.CONTENT), len(carried(events)), finished)
    assert got == expected
    assert carried(events) == ids[: expected.accepted]


@settings(max_examples=100, deadline=None)
@given(data=st.data(), stops=STOPS, thinking=st.booleans())
def test_nothing_is_withheld_longer_than_needed(
    frontend: Frontend, data: st.DataObject, stops: StopConditions, thinking: bool
) -> None:
    ids = data.draw(token_lists(frontend))
    reference, output = Reference(frontend.tokenizer, stops, thinking), session(frontend, stops, thinking)
    events = []
    for n in range(1, min(len(ids), reference.answer(ids).accepted) + 1):
        preview = output.preview([ids[n - 1]], [], False)
        output.commit(preview)
        events.extend(preview.events)
        if preview.finish is None:
            for channel in Channel:
                assert shown(events, channel) == reference.visible_now(ids[:n], channel)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), stops=STOPS, thinking=st.booleans())
def test_a_preview_has_no_effect_and_commit_adopts_it(
    frontend: Frontend, data: st.DataObject, stops: StopConditions, thinking: bool
) -> None:
    first, second = data.draw(token_lists(frontend)), data.draw(token_lists(frontend))
    output = session(frontend, stops, thinking)
    logprobs = [logprob(token_id) for token_id in first]
    wanted = output.preview(first, logprobs, False)
    output.preview(second, [], False)
    output.fork().flush()
    again = output.preview(first, logprobs, False)
    assert again == wanted
    output.commit(again)
    if again.finish is None:
        twin = output.fork()
        assert answer(output, [second]) == answer(twin, [second])


@settings(max_examples=80, deadline=None)
@given(data=st.data(), thinking=st.booleans(), stops=STOPS)
def test_spelled_tags_work_like_tag_tokens(
    spelled_frontend: Frontend, data: st.DataObject, thinking: bool, stops: StopConditions
) -> None:
    pieces = st.sampled_from(["<think>", "</think>", "<", "</th", "a", "b", "\n", " ", "🙂"])
    text = "".join(data.draw(st.lists(pieces, min_size=1, max_size=8)))
    ids = byte_ids(text)
    spans = data.draw(spans_of(ids))
    plain = answer(session(spelled_frontend, StopConditions(), thinking), spans)
    lead, tag, rest = text.partition("<think>")
    opened = thinking or bool(tag and not lead.strip())
    lead, rest = ("", text) if thinking else (lead, rest) if opened else (text, "")
    reasoning, closed, content = rest.partition("</think>")
    reasoning = reasoning.lstrip("\n").rstrip("\n") if closed else reasoning.lstrip("\n")
    assert (plain.reasoning, plain.content) == (reasoning, lead + content.lstrip("\n"))
    single = [[token_id] for token_id in ids]
    if "<" not in "".join(stops.strings):  # where a tag may begin, a stop waits until the tag is ruled out
        assert answer(session(spelled_frontend, stops, thinking), spans) == answer(
            session(spelled_frontend, stops, thinking), single
        )


def test_the_framing_of_thinking_is_not_text(frontend: Frontend) -> None:
    ids = ids_of(frontend, "\nlet me see\n\nok\n</think>\n\nthe cat\n", "<|im_end|>")
    for spans in ([ids], [[token_id] for token_id in ids]):
        got = answer(session(frontend, StopConditions(), thinking=True), spans)
        assert got == Answer("let me see\n\nok", "the cat\n", len(ids), True)


def test_thinking_that_never_closes_stays_reasoning(frontend: Frontend) -> None:
    got = answer(session(frontend, StopConditions(), thinking=True), [ids_of(frontend, "the fox\n")])
    assert (got.reasoning, got.content, got.finished) == ("the fox\n", "", False)


def test_an_answer_may_open_thinking_itself_but_only_at_its_start(frontend: Frontend) -> None:
    got = answer(
        session(frontend, StopConditions()), [ids_of(frontend, "<think>\nfox\n</think>\n\ndog <think> </think>")]
    )
    assert (got.reasoning, got.content) == ("fox", "dog <think> </think>")


def test_stops_sleep_while_thinking_unless_asked(frontend: Frontend) -> None:
    ids = ids_of(frontend, "the fox</think>the fox runs")
    asleep = answer(session(frontend, StopConditions(strings=(" fox",)), thinking=True), [ids])
    assert (asleep.reasoning, asleep.content, asleep.finished) == ("the fox", "the", True)
    awake = answer(session(frontend, StopConditions(strings=(" fox",), in_thinking=True), thinking=True), [ids])
    assert (awake.reasoning, awake.content, awake.finished) == ("the", "", True)


def test_newlines_before_a_stop_in_thinking_are_text(frontend: Frontend) -> None:
    stops = StopConditions(strings=("STOP",), in_thinking=True)
    spans = [byte_ids("fox\n\n"), byte_ids("STOP")]
    assert answer(session(frontend, stops, thinking=True), spans) == Answer("fox\n\n", "", 9, True)


def test_of_stops_complete_at_once_the_longest_is_cut_off(frontend: Frontend) -> None:
    for strings in (("bc", "abc"), ("abc", "bc")):
        spans = [[token_id] for token_id in byte_ids("xabc")]
        assert answer(session(frontend, StopConditions(strings=strings)), spans).content == "x"


def test_a_character_cut_off_by_a_tag_belongs_to_the_channel_it_began_in(frontend: Frontend) -> None:
    half = byte_ids("🙂")
    ids = [*byte_ids("a"), *half[:2], *ids_of(frontend, "</think>"), *half[2:], *byte_ids("b")]
    got = answer(session(frontend, StopConditions(), thinking=True), [ids])
    assert (got.reasoning, got.content) == ("a\ufffd", "\ufffd\ufffdb")


def test_a_stop_ends_a_speculative_span_at_its_last_token(frontend: Frontend) -> None:
    ids = byte_ids("one STOP two")
    preview = session(frontend, StopConditions(strings=("STOP",))).preview(ids, [], False)
    assert (preview.accepted, preview.finish) == (len("one STOP"), FinishReason.STOP)
    assert preview.events == (Delta(Channel.CONTENT, "one ", tuple(ids[:8])),)


def test_end_tokens_and_stop_ids_show_no_text(frontend: Frontend) -> None:
    fox, end = ids_of(frontend, "fox"), ids_of(frontend, "<|im_end|>")
    stop = ids_of(frontend, " cat")
    assert len(stop) == 1
    by_id = answer(session(frontend, StopConditions(token_ids=tuple(stop))), [[*fox, *stop, *fox]])
    assert (by_id.content, by_id.accepted, by_id.finished) == ("fox", len(fox) + 1, True)
    ignored = answer(session(frontend, StopConditions(ignore_eos=True)), [[*fox, *end, *fox]])
    assert (ignored.content, ignored.finished) == ("foxfox", False)


def test_forced_tokens_never_end_an_answer(frontend: Frontend) -> None:
    output = session(frontend, StopConditions(strings=("fox",), in_thinking=True), thinking=True)
    forced = ids_of(frontend, "the fox</think>")
    preview = output.preview(forced, [], True)
    assert (preview.accepted, preview.finish) == (len(forced), None)
    output.commit(preview)
    got = answer(output, [ids_of(frontend, "\n\na fox")])
    assert (got.content, got.finished) == ("a ", True)


def test_flush_gives_back_what_was_held_and_an_incomplete_character(frontend: Frontend) -> None:
    output = session(frontend, StopConditions(strings=("STOP",)))
    ids = [*byte_ids("one ST"), *byte_ids("🙂")[:2]]
    preview = output.preview(ids, [], False)
    assert preview.events == (Delta(Channel.CONTENT, "one ", tuple(ids[:4])),)
    output.commit(preview)
    assert output.flush() == (Delta(Channel.CONTENT, "ST\ufffd", tuple(ids[4:])),)
    assert output.flush() == ()


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        (StopConditions(strings=("a", "")), r"stops\.strings\[1\]: must have 1 to"),
        (StopConditions(strings=cast(tuple[str, ...], "STOP")), r"stops\.strings: must be a tuple of strings"),
        (StopConditions(strings=("\ud800",)), r"stops\.strings\[0\]: character 0 is a lone surrogate"),
        (StopConditions(strings=("a",) * 65), r"stops\.strings: 65 strings"),
        (StopConditions(token_ids=(3, 100_000)), r"stops\.token_ids\[1\]: 100000 is no token"),
        (StopConditions(token_ids=(-1,)), r"stops\.token_ids\[0\]: -1"),
    ],
)
def test_stop_conditions_that_cannot_hold_are_refused(frontend: Frontend, stops: StopConditions, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        session(frontend, stops)
