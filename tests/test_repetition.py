"""How much of a repetition is verified at a time, against sums written out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_edge.growth import Prices
from eagle_edge.repetition import best_piece, worth_of_chain

CHANCES = st.lists(st.floats(0.01, 0.99), max_size=12)
STEPS = st.lists(st.floats(0.0, 3.0), min_size=13, max_size=13)


def prices(steps: list[float], rate: float = 0.3) -> Prices:
    """A round's prices where one more row costs the next of ``steps``, after a first of 3 ms."""
    verify_ms = [0.0, 3.0]
    for step in steps:
        verify_ms.append(verify_ms[-1] + step)
    return Prices(rate, verify_ms, [0.0, 0.3], len(steps))


@given(CHANCES, STEPS, st.floats(0.0, 1.0))
def test_no_other_beginning_is_faster(given_: list[float], steps: list[float], rest_ms: float) -> None:
    """Tokens a millisecond of the piece are at least those of every other; all is kept where a lone row is fastest."""
    at = prices(steps)

    def speed(n: int) -> float:
        return sum(math.prod(given_[:i]) for i in range(n + 1)) / (at.verify_ms[n + 1] + rest_ms)

    piece = best_piece(given_, at, rest_ms)
    assert piece == given_[: len(piece)]
    fastest = max(range(len(given_) + 1), key=speed)
    if fastest == 0:
        assert piece == given_
    else:
        assert speed(len(piece)) == pytest.approx(speed(fastest))


@given(CHANCES, STEPS, st.floats(0.1, 2.0))
def test_its_worth_is_that_of_its_best_beginning(given_: list[float], steps: list[float], rate: float) -> None:
    """Expected tokens, less those that the further rows' time would have brought; never less than nothing."""
    at = prices(steps, rate)
    values = [
        sum(math.prod(given_[: i + 1]) for i in range(n)) - rate * (at.verify_ms[n + 1] - at.verify_ms[1])
        for n in range(len(given_) + 1)
    ]
    assert worth_of_chain(given_, at) == pytest.approx(max(values), abs=1e-9)


def test_it_does_not_depend_on_the_rest_of_the_text() -> None:
    """The price of time elsewhere changes what a repetition is worth, not how much of it is taken at a time."""
    cheap, dear = prices([0.7] * 31, rate=0.25), prices([0.7] * 31, rate=1.0)
    chances = [0.96] * 31
    assert best_piece(chances, cheap, 0.3) == best_piece(chances, dear, 0.3)
    assert 5 < len(best_piece(chances, cheap, 0.3)) < 20
    assert worth_of_chain(chances, cheap) > worth_of_chain(chances, dear)
