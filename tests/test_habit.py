"""Habits have to agree with working everything out."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_edge.config import DraftParams
from eagle_edge.expand import Children
from eagle_edge.growth import Growth, Prices
from eagle_edge.guesses import Guesses
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
    chances=st.lists(st.lists(st.floats(0.001, 0.999), min_size=4, max_size=4), min_size=5, max_size=5),
)
def test_a_habit_decides_as_working_it_out_would(
    steps: list[float], level_ms: float, rate: float, chances: list[list[float]]
) -> None:
    """Where a habit stops asking, no level is expected to pay; and no other number of its guesses gains more."""
    given = [normalised(each) for each in chances]  # of what may follow the root, and each guess of the chain
    params = DraftParams(MOST + 1, 4, 4, automatic=True)
    growth, prices = Growth(params), Prices(rate, growing(steps), [0.0] + 8 * [level_ms], MOST)
    asked: list[int] = []

    def level(tokens: Any, parents: Any, top_k: int) -> Children:
        asked.extend(parents.tolist())
        depth = len(asked)
        return np.arange(4, dtype=np.int32)[None] + 10 * depth, np.array([given[depth]], np.float32)

    followed = Habit(prices, growth, work_ms=0.0).follow(
        (list(range(4)), given[0]), level, lambda logprob, depth: logprob, params.depth + 1
    )
    assert asked == list(range(-1, len(asked) - 1))  # a chain
    if followed.may_branch:
        return
    guesses = Guesses()
    evaluated = followed.add_to(guesses, lambda logprob, depth: logprob, 4)
    assert len(evaluated) == len(asked)
    gains, chain_gains = guesses.gains(prices.most, prices.verify_ms, prices.rate), followed.gains
    assert len(chain_gains) == len(asked) + 2
    if not asked:  # then siblings were looked at as closely
        assert max(gains) - chain_gains[chain_gains.index(max(chain_gains))] <= MARGIN + 1e-6

    def no_level(tokens: Any, parents: Any, top_k: int) -> Children:
        raise AssertionError("a level was expected to pay")

    growth.grow(guesses, no_level, lambda logprob, depth: logprob, prices, room=9, evaluated=evaluated)


def normalised(chances: list[float]) -> list[float]:
    """Chances of siblings, likeliest first, which exclude each other."""
    first, *others = sorted(chances, reverse=True)
    return [first, *(min(other, (1 - first) / 3) for other in others)]
