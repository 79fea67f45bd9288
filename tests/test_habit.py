"""Habits have to agree with working everything out."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_edge.config import DraftParams
from eagle_edge.expand import Children
from eagle_edge.growth import Growth, Prices
from eagle_edge.guesses import ROOT, Guesses
from eagle_edge.habit import Habit
from eagle_edge.worth import MARGIN

MOST = 12


def growing(steps: list[float]) -> list[float]:
    return [0.0, *np.cumsum([5.0, *steps]).tolist()]


@settings(max_examples=2000)
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
    n = Habit.of(prices, growth, work_ms=0.0).n_nodes(given[0], given[1])
    if n is None:
        return
    guesses = Guesses()
    guesses.add(ROOT, range(4), [0.0] * 4, given)
    gains = guesses.gains(prices.most, prices.verify_ms, prices.rate)
    assert max(gains) - gains[n] <= MARGIN + 1e-9

    def level(tokens: Any, parents: Any, top_k: int) -> Children:
        raise AssertionError("a level was expected to pay")

    growth.grow(guesses, level, lambda logprob, depth: logprob, prices, room=9)
