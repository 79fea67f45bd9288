"""The size that evaluations stay at, and habits: both have to agree with working everything out."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eagle_edge.config import DraftParams
from eagle_edge.expand import Children
from eagle_edge.growth import Growth, Prices
from eagle_edge.guesses import ROOT, Guesses
from eagle_edge.habit import Habit
from eagle_edge.home import Home
from eagle_edge.worth import MARGIN

MOST = 12


def test_a_home_is_where_most_rounds_gain_most() -> None:
    """Three rounds of four gain most with two rows: others are excursions, however much they gain."""
    home = Home(8)
    for _ in range(100):
        for gains in 3 * [(0.0, 0.3, 0.1)] + [(0.0, 0.4, 0.8)]:
            home.note(gains, change=0.2)
    assert home.rows == 2
    assert home.gain((0.0, 0.3, 0.2), 0.2) == 0.3
    assert home.gain((0.0, 0.4, 0.8), 0.2) == 0.4  # 0.8 less the way there and back
    assert home.gain((0.0, 0.4, 0.9), 0.2) == 0.5


def test_nobody_stays_where_nothing_is_gained() -> None:
    """After a stretch of drafting, rounds without a guess bring it back to a lone row."""
    home = Home(8)
    for _ in range(40):
        home.note((0.0, 0.3), change=0.2)
    drafting = home.rows
    for _ in range(80):
        home.note((0.0,), change=0.2)
    assert (drafting, home.rows) == (2, 1)


def test_changes_are_counted_both_ways() -> None:
    """From a lone row: staying is free, going home costs one change, and any other size one more for the way home."""
    home = Home(4)
    home.rows = 3
    assert home.changes(1)[1:].tolist() == [1, 2, 1, 2]
    assert home.changes(3)[1:].tolist() == [2, 2, 0, 2]


def growing(steps: list[float]) -> list[float]:
    return [0.0, *np.cumsum([5.0, *steps]).tolist()]


@given(
    steps=st.lists(st.floats(0.0, 3.0), min_size=MOST, max_size=MOST),
    level_ms=st.floats(0.05, 1.0),
    rate=st.floats(0.05, 0.4),
    chances=st.lists(st.floats(0.001, 0.999), min_size=4, max_size=4),
)
def test_a_habit_decides_as_working_it_out_would(
    steps: list[float], level_ms: float, rate: float, chances: list[float]
) -> None:
    """Where a habit names a number of guesses, no other gains more, and no level is expected to pay."""
    first, *others = sorted(chances, reverse=True)
    given = [first, *(min(other, (1 - first) / 3) for other in others)]
    params = DraftParams(MOST + 1, 4, 4, automatic=True)
    growth, prices = Growth(params), Prices(rate, growing(steps), [0.0] + 8 * [level_ms], MOST)
    n = Habit.of(prices, growth, work_ms=0.0, until=1).n_nodes(given[0], given[1])
    if n is None:
        return
    guesses = Guesses()
    guesses.add(ROOT, range(4), [0.0] * 4, given)
    gains = guesses.gains(prices.most, prices.verify_ms, prices.rate)
    assert max(gains) - gains[n] <= MARGIN + 1e-9

    def level(tokens: Any, parents: Any, top_k: int) -> Children:
        raise AssertionError("a level was expected to pay")

    growth.grow(guesses, level, lambda logprob, depth: logprob, prices, room=9)
