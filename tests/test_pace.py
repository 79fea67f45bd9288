"""How fast a text comes, and what rounds take beyond their calls."""

from __future__ import annotations

import pytest

from eagle_edge.pace import Pace
from eagle_edge.round import Kind, Round


def done(kind: Kind, rest_ms: float) -> tuple[Round, float]:
    """A round of 3 ms of verification, 1 ms of the head unless it is idle, and so much rest; and when it is over."""
    head_ms = 0.0 if kind is Kind.IDLE else 1.0
    return Round(kind=kind, started=2.0, verify_ms=3.0, head_ms=head_ms), 2.0 + (3.0 + head_ms + rest_ms) / 1e3


def test_the_rest_of_rounds_counts() -> None:
    """Plain decoding is as slow as its rounds are, and kinds of rounds differ by what they take beyond their calls."""
    pace = Pace()
    for _ in range(200):
        for kind, rest_ms in ((Kind.IDLE, 0.1), (Kind.HABIT, 0.2), (Kind.WORKED_OUT, 0.25)):
            pace.note_rest(*done(kind, rest_ms))
    assert pace.rate(3.0) == pytest.approx(1 / 3.1, rel=1e-3)
    assert pace.more_rest_ms(Kind.WORKED_OUT, Kind.IDLE) == pytest.approx(0.15, abs=0.01)
    assert pace.more_rest_ms(Kind.IDLE, Kind.HABIT) == 0.0


def test_a_slow_reader_is_no_cost() -> None:
    """Somebody who takes a second with a token moves the mean by no more than a tenth of an evaluation would."""
    pace = Pace()
    pace.note_rest(*done(Kind.IDLE, 0.1))
    pace.note_rest(*done(Kind.IDLE, 1000.0))
    assert pace.rate(3.0) > 1 / 3.5


def test_the_first_round_of_a_kind_replaces_the_guess() -> None:
    """Until a kind has been seen it takes what it takes on an ordinary laptop; then what it took."""
    pace = Pace()
    assert pace.more_rest_ms(Kind.WORKED_OUT, Kind.HABIT) > pace.more_rest_ms(Kind.HABIT, Kind.IDLE) > 0
    pace.note_rest(*done(Kind.WORKED_OUT, 0.5))
    pace.note_rest(*done(Kind.HABIT, 0.4))
    assert pace.more_rest_ms(Kind.WORKED_OUT, Kind.HABIT) == pytest.approx(0.1)


def test_more_tokens_a_time_make_time_dearer() -> None:
    """Two tokens in one and a half plain rounds' time bring a third more; fewer never count."""
    fast, slow = Pace(), Pace()
    for _ in range(300):
        fast.note(2.0, 4.5, 3.0)
        slow.note(1.0, 6.0, 3.0)
    plain = Pace().rate(3.0)
    assert fast.rate(3.0) == pytest.approx(plain * 4 / 3, rel=0.03)
    assert slow.rate(3.0) == plain
