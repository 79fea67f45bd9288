"""The number of rows that most evaluations should have, where another number than the last one costs time.

llama.cpp builds and plans a graph anew whenever the number of rows changes. So a size is chosen to stay at. Fewer nodes
leave blank rows there, which cost a little each; any other size is an excursion that pays for the way there and the way
back. The best home is the one from which the recent rounds, excursions included, would have gained the most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Home"]

_SMOOTHING = 1 / 32  # of a round in what a home was worth lately
_LARGEST = 16  # rows of a home
_MOVE = 0.01  # tokens a round that another home has to be worth more


class Home:
    """Finds it.

    What a change of size and a blank row cost is given in one unit, milliseconds or tokens. Where a target does not
    pad, a blank row costs as much as two changes, which is never worth it.

    Args:
        most: rows of an evaluation.

    Attributes:
        rows: of the home.
    """

    def __init__(self, most: int) -> None:
        self.rows = 1
        self._most = most
        self._worth = [0.0] * min(most, _LARGEST)  # [rows - 1] running means in tokens

    def extra(self, last: int, change: float, blank: float) -> list[float]:
        """[most + 1] by nodes: what an evaluation costs beyond its nodes, if the last one had ``last`` rows."""
        extra = [2 * change] * (self._most + 1)
        if last <= self._most:
            extra[last] -= change
        extra[self.rows] -= change
        there = change * (self.rows != last)
        for n in range(1, self.rows):
            extra[n] = min(extra[n], there + blank * (self.rows - n))
        return extra

    def rows_for(self, n: int, last: int, change: float, blank: float) -> int:
        """Rows that an evaluation of ``n`` nodes should have; see ``extra``."""
        exactly = change * ((n != last) + (n != self.rows))
        at_home = change * (self.rows != last) + blank * (self.rows - n)
        return self.rows if n < self.rows and at_home < exactly else n

    def gain(self, gains: Sequence[float], change: float, blank: float) -> float:
        """What a round is worth from here, in tokens; arguments as of ``note``."""
        return self._worths(gains, change, blank)[self.rows - 1]

    def note(self, gains: Sequence[float], change: float, blank: float) -> None:
        """Learn from a round.

        Args:
            gains: by nodes below the root, in tokens, as if every size could be had at no cost.
            change: what one costs, in tokens.
            blank: what a blank row costs.
        """
        new = self._worths(gains, change, blank)
        self._worth = [old + _SMOOTHING * (now - old) for old, now in zip(self._worth, new, strict=True)]
        best = max(self._worth)
        if best > self._worth[self.rows - 1] + _MOVE:
            self.rows = self._worth.index(best) + 1

    def _worths(self, gains: Sequence[float], change: float, blank: float) -> list[float]:
        """[rows - 1] what a round is worth by the rows of the home."""
        worths, there, excursion = [], -math.inf, max(gains) - 2 * change
        for at in range(len(self._worth)):
            there = max(there - blank, gains[at] if at < len(gains) else -math.inf)
            worths.append(max(there, excursion))
        return worths
