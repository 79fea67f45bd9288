"""Level by level, the head is asked for more candidates while the next level is expected to pay for itself.

What a level would bring is predicted from what levels brought before: at each depth, the chances of a node's children
by rank. A node is worth what its children are worth above the price of verifying them, and the first node also what
further levels below it would be, because two levels can pay where one does not (corners of the verification's cost).
This module knows neither heads nor clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .config import DraftParams
from .expand import Level
from .guesses import ROOT, Guesses

__all__ = ["Growth", "Prices"]

Float64 = npt.NDArray[np.float64]

_DEPTHS = 6  # depths whose children are told apart; deeper ones share the last
_AHEAD = 6  # levels looked ahead
_CORNER = 16  # nodes within which a corner of the verification's cost is looked for
_HALVINGS = 6  # of the interval in which a chance is looked for
_SMOOTHING = 1 / 32  # of a level in the running chances


@dataclass(frozen=True, slots=True)
class Prices:
    """What a round's decisions cost.

    Attributes:
        rate: tokens that a millisecond brings otherwise.
        verify_ms: [n + 1] by nodes of the tree, root included.
        level_ms: [n + 1] by nodes of a level.
        most: the most nodes below the root.
    """

    rate: float
    verify_ms: list[float]
    level_ms: list[float]
    most: int

    def of_one_more(self, gains: list[float]) -> float:
        """Tokens that verifying a further node is worth, beyond the best size of ``Guesses.gains``."""
        n = gains.index(max(gains)) + 1
        ms, further = self.verify_ms[n], self.verify_ms[n + 1 : min(n + _CORNER, self.most + 1) + 1]
        return self.rate * min(((more - ms) / i for i, more in enumerate(further, 1)), default=1.0 / self.rate)


class Growth:
    """Grows candidates, and remembers how likely children of each rank have been."""

    def __init__(self, params: DraftParams) -> None:
        self._params = params
        usual = [0.6 / (1 + rank) ** 2 for rank in range(params.top_k)]
        self._children = [usual[:] for _ in range(_DEPTHS)]  # [depth of the parent][rank]

    def grow(
        self,
        guesses: Guesses,
        level: Level,
        calibrate: Callable[[list[float], int], list[float]],
        prices: Prices,
        room: int,
        evaluated: Sequence[int] = (),
    ) -> None:
        """Add candidates below those that are there.

        Args:
            guesses: they grow.
            level: evaluates nodes, numbered in the order of evaluation.
            calibrate: the chances of children by log-probability and the depth of their parent.
            prices: of this round.
            room: the deepest a node may lie.
            evaluated: candidates whose children are there beside those of the root, each a child of the one before.
        """
        node_of = {at: node for node, at in enumerate((ROOT, *evaluated), ROOT)}  # of evaluated candidates
        newest = list(guesses.children.get(evaluated[-1] if evaluated else ROOT, ()))
        for depth in range(1 + len(evaluated), min(self._params.depth + 1, room)):
            rows = self._worth_evaluating(guesses, newest, depth, prices)
            if not rows:
                break
            parents = np.array([node_of[guesses.parent[row]] for row in rows], np.int32)
            tokens, logprob = level(
                np.array([guesses.tokens[row] for row in rows], np.int32), parents, self._params.top_k
            )
            said = logprob.tolist()
            given = [calibrate(children, depth) for children in said]
            newest = []
            for row, *children in zip(rows, tokens.tolist(), said, given, strict=True):
                node_of[row] = len(node_of) - 1
                newest += guesses.add(row, *children)
            self.remember(depth, given[0])

    def _worth_evaluating(self, guesses: Guesses, newest: list[int], depth: int, prices: Prices) -> list[int]:
        """The newest candidates whose children are expected to pay for the level, likeliest first; may be none."""
        best = sorted(newest, key=lambda at: -guesses.chance[at])[: self._params.top_k]
        if not best:
            return best
        price = prices.of_one_more(guesses.gains(prices.most, prices.verify_ms, prices.rate))
        children = self._at(depth)
        value = self._further(guesses.chance[best[0]], depth, price, prices)
        most, n = 0.0, 0
        for i, at in enumerate(best, 1):
            value += _above(price, guesses.chance[at], children)
            net = value - prices.rate * prices.level_ms[i]
            if net > most:
                most, n = net, i
        return best[:n]

    def promising(self, depth: int, price: float, prices: Prices) -> float:
        """The chance of a guess from which asking for its children is expected to pay, where it is the only one.

        Args:
            depth: where it lies below the root.
            price: tokens that verifying one of its children is worth.
            prices: of this round.
        """
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            chance = (low + high) / 2
            value = self._further(chance, depth, price, prices) + _above(price, chance, self._at(depth))
            low, high = (low, chance) if value > prices.rate * prices.level_ms[1] else (chance, high)
        return low

    def _at(self, depth: int) -> list[float]:
        return self._children[min(depth, _DEPTHS - 1)]

    def _further(self, chance: float, depth: int, price: float, prices: Prices) -> float:
        """What levels after the next one are worth along the likeliest path, less their cost; at least 0."""
        best = total = 0.0
        level = prices.rate * prices.level_ms[1]
        for ahead in range(1, min(_AHEAD, self._params.depth - depth)):
            chance *= self._at(depth + ahead - 1)[0]
            total += _above(price, chance, self._at(depth + ahead)[:3]) - level
            best = max(best, total)
        return best

    def remember(self, depth: int, given: list[float]) -> None:
        """Learn what the likeliest children of a guess at ``depth`` were like."""
        row = self._at(depth)
        for rank, chance in enumerate(sorted(given, reverse=True)[: len(row)]):
            row[rank] += _SMOOTHING * (chance - row[rank])


def _above(price: float, chance: float, children: list[float]) -> float:
    """What the children of a node reached with ``chance`` are worth above the price of verifying them."""
    return sum(chance * child - price for child in children if chance * child > price)
