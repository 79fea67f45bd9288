"""The number of rows that most evaluations should have, where another number than the last one costs time.

llama.cpp builds and plans a graph anew whenever the number of rows changes. So a size is chosen to stay at, and others
are excursions that pay for the way there and the way back. The best home is the one from which the recent rounds,
excursions included, would have gained the most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Home"]

_SMOOTHING = 1 / 32  # of a round in what a home was worth lately
_MOVE = 0.01  # tokens a round that another home has to be worth more


class Home:
    """Finds it.

    Args:
        most: rows of an evaluation.

    Attributes:
        rows: of the home.
    """

    def __init__(self, most: int) -> None:
        self.rows = 1
        self._all = np.arange(most + 1)
        self._worth = np.zeros(most + 1)  # [rows] running means in tokens

    def changes(self, last: int) -> npt.NDArray[np.float64]:
        """[most + 1] by rows: changes of size that an evaluation brings about, if the last one had ``last`` rows."""
        changes: npt.NDArray[np.float64] = (self._all != last) + (self._all != self.rows).astype(float)
        return changes

    def gain(self, gains: Sequence[float], change: float) -> float:
        """What a round is worth from here, in tokens; arguments as of ``note``."""
        there = gains[self.rows - 1] if self.rows <= len(gains) else -math.inf
        return max(there, max(gains) - 2 * change)

    def note(self, gains: Sequence[float], change: float) -> None:
        """Learn from a round.

        Args:
            gains: by nodes below the root, in tokens, as if no change cost anything; those that could be had.
            change: what one costs, in tokens.
        """
        worth = np.full(len(self._worth), max(gains) - 2 * change)
        n = min(len(gains), len(worth) - 1)
        np.maximum(worth[1 : n + 1], gains[:n], out=worth[1 : n + 1])
        self._worth += _SMOOTHING * (worth - self._worth)
        best = int(self._worth[1:].argmax()) + 1
        if self._worth[best] > self._worth[self.rows] + _MOVE:
            self.rows = best
