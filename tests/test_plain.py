"""What plain decoding takes by itself, and when rounds are kept plain to find out."""

from __future__ import annotations

import math

import pytest

from eagle_edge.plain import Plain

DOUBTFUL, CLEAR = 0.0, 1.0  # tokens that asking is worth


def rounds(plain: Plain, n: int, worth: float = DOUBTFUL, *, repeats: int = 0) -> list[bool]:
    """Whether each of ``n`` rounds was called for; others draft, and so does every ``repeats``-th of those."""
    called = []
    for i in range(n):
        called.append(plain.wants_round(worth))
        plain.note_round(called[-1] and not (repeats and i % repeats == 0))
    return called


def test_plain_rounds_are_called_for_in_runs_and_seldom() -> None:
    """A first run comes early, later ones take less than a twentieth of the rounds; each is long enough to settle."""
    plain = Plain()
    called = rounds(plain, 3000)
    assert 0 < sum(called[:128]) < 40
    assert 0 < sum(called[512:]) < 0.05 * 2500
    runs = "".join("x" if it else " " for it in called).split()
    assert min(map(len, runs)) > 12


def test_where_drafting_clearly_pays_nothing_is_called_for() -> None:
    """A few percent of an evaluation do not change what is decided there."""
    assert not any(rounds(Plain(), 2000, CLEAR))


def test_a_text_that_repeats_itself_ends_the_calls() -> None:
    """Where no run gets long, the calls stop after a while all the same."""
    called = rounds(Plain(), 600, repeats=3)
    assert sum(called) < 100
    assert not any(called[200:500])


def test_only_settled_rounds_count_and_their_share_is_found() -> None:
    """After some plain rounds in a row one is settled, not after the next draft or at the start of a text."""
    plain = Plain()
    settled = []
    for _ in range(12):
        plain.note_round(True)
        settled.append(plain.is_settled)
    assert not any(settled[:8])
    assert settled[-1]
    plain.note_round(False)
    assert not plain.is_settled
    for _ in range(12):
        plain.note_round(True)
    plain.begin()
    assert not plain.is_settled
    for _ in range(100):
        plain.note(4.5, 5.0)
    assert plain.share == pytest.approx(0.9)
    for _ in range(300):
        plain.note(9.0, 5.0)  # a plain row never costs more than one between drafts
    assert plain.share == pytest.approx(1.0, abs=0.01)


def test_the_share_is_kept_and_foreign_states_are_refused() -> None:
    """A restored share is the same and is not forgotten by the next round; what is no number raises."""
    plain, again = Plain(), Plain()
    plain.note(4.0, 5.0)
    again.restore(plain.to_json())
    again.note(5.0, 5.0)
    assert 0.8 < again.share < 0.82
    again.restore(-3)
    assert again.share > 0.5
    for state in ("x", None, math.nan):
        with pytest.raises((ValueError, TypeError)):
            again.restore(state)
