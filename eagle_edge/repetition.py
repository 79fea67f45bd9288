"""How much of a repetition to verify at a time.

What a text repeats is there in the next round too, as cheap as now: it is no loss to leave some of it. So of all its
beginnings the one is best that brings the most tokens a millisecond by itself, however slow the rest of the text is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from .growth import Prices

__all__ = ["best_piece", "worth_of_chain"]


def best_piece(given: list[float], prices: Prices, rest_ms: float) -> list[float]:
    """The beginning that brings the most tokens a millisecond; all of it where a lone row brings more than any.

    Args:
        given: [n] the chance of each token, given the ones before it.
        prices: of this round.
        rest_ms: what the round takes beyond its evaluation.
    """
    tokens = accumulate(accumulate(given, mul), initial=1.0)
    speeds = [n / (ms + rest_ms) for n, ms in zip(tokens, prices.verify_ms[1:], strict=False)]
    return given[: speeds.index(max(speeds)) or None]


def worth_of_chain(given: Sequence[float], prices: Prices) -> float:
    """What verifying a chain, or the best beginning of it, is worth in tokens, its time counted; at least 0.

    Args:
        given: [n] the chance of each token, given the ones before it.
        prices: of this round.
    """
    best = tokens = 0.0
    for chance, ms in zip(accumulate(given, mul), prices.verify_ms[2 : prices.most + 2], strict=False):
        tokens += chance
        best = max(best, tokens - prices.rate * (ms - prices.verify_ms[1]))
    return best
