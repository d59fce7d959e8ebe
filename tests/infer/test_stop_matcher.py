"""Stop sequences, found however the input is cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from infer.stop_matcher import StopMatcher


def run(stops: list[str], parts: list[str]) -> tuple[str, bool]:
    matcher: StopMatcher[str] = StopMatcher(stops, nothing="")
    shown = ""
    for part in parts:
        text, found = matcher.push(part)
        shown += text
        if found:
            return shown, True
    return shown + matcher.flush(), False


def feed(matcher: StopMatcher[str], *parts: str) -> list[tuple[str, bool]]:
    return [matcher.push(part) for part in parts]


def test_holds_back_what_may_begin_a_stop() -> None:
    matcher = StopMatcher(["abc"], nothing="")
    assert feed(matcher, "xa", "b", "ab", "c", "x") == [
        ("x", False),
        ("", False),
        ("ab", False),
        ("", True),
        ("x", False),
    ]


def test_the_first_to_end_wins_then_the_longest() -> None:
    assert run(["yz", "xyz!", "b"], ["axyz!b"]) == ("ax", True)
    assert run(["yz", "xyz"], ["axyz"]) == ("a", True)


def test_flush_gives_back_a_beginning() -> None:
    assert run(["\n\n"], ["a\n"]) == ("a\n", False)


def test_sequences_of_ids() -> None:
    matcher: StopMatcher[tuple[int, ...]] = StopMatcher([(1, 1, 2), (9,)], nothing=())
    assert [matcher.push((i,)) for i in (1, 1, 1, 2)] == [((), False), ((), False), ((1,), False), ((), True)]
    assert matcher.push((3, 9, 4)) == ((3,), True)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("ab", max_size=3), max_size=12),
)
@settings(max_examples=500, deadline=None)
def test_cutting_makes_no_difference(stops: list[str], parts: list[str]) -> None:
    whole = "".join(parts)
    matches = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    expected = (whole[: min(matches)[1]], True) if matches else (whole, False)
    assert run(stops, parts) == expected
