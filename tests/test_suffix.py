"""What the text's last tokens were followed by before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eagle_edge.suffix import SuffixIndex


def test_a_phrase_that_occurred_goes_on_as_it_did() -> None:
    """The continuation of the earlier occurrence is proposed, with the length that matched."""
    assert SuffixIndex().propose([9, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3], 3) == ([4, 5, 6], 3)


def test_the_longest_match_wins_over_the_latest() -> None:
    """Of two occurrences the one that agrees further back counts."""
    ids = [7, 1, 2, 50, 0, 8, 1, 2, 60, 0, 7, 1, 2]
    assert SuffixIndex().propose(ids, 1) == ([50], 3)


def test_the_latest_of_equals_wins() -> None:
    """Where both agree equally far, what was said last counts."""
    assert SuffixIndex().propose([1, 2, 50, 1, 2, 60, 1, 2], 1)[0] == [60]


def test_nothing_is_proposed_for_what_is_new() -> None:
    """A pair that never occurred, an empty text and no room give nothing."""
    index = SuffixIndex()
    assert index.propose([], 4) == ([], 0)
    assert index.propose([1], 4) == ([], 0)
    assert index.propose([1, 2], 4) == ([], 0)
    assert index.propose([1, 2, 3, 2, 1], 4) == ([], 0)
    assert index.propose([1, 2, 3, 2, 1, 2, 3], 0) == ([], 0)


def test_a_repetition_goes_on_with_its_period() -> None:
    """A match that reaches the end of the text is continued past it."""
    assert SuffixIndex().propose([5, 1, 2, 3, 1, 2, 3, 1, 2, 3], 7)[0] == [1, 2, 3, 1, 2, 3, 1]


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(1, 5))
def test_growing_texts_give_what_whole_ones_give(ids: list[int], n: int) -> None:
    """Proposals do not depend on how the text arrived, and always follow an earlier occurrence of its end."""
    index = SuffixIndex()
    for end in range(2, len(ids) + 1):
        tokens, length = index.propose(ids[:end], n)
        assert (tokens, length) == SuffixIndex().propose(ids[:end], n)
        if tokens:
            assert length >= 2
            assert any(
                ids[at - length : at] == ids[end - length : end] and ids[at] == tokens[0] for at in range(length, end)
            )


def test_a_shorter_text_is_another_text() -> None:
    """After the text was cut, nothing is proposed from what was cut off."""
    index = SuffixIndex()
    index.propose([1, 2, 3, 1, 2, 4, 1, 2], 1)
    assert index.propose([1, 2, 3, 1, 2], 1) == ([3], 2)
