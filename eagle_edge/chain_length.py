"""How long a chain should be that the draft samples instead of ranking: its chances are known only when it is drawn."""

from __future__ import annotations

import numpy as np

from .growth import Prices

__all__ = ["ChainLength"]

_REMEMBERED = 0.98  # of a round, in the next one


class ChainLength:
    """The length that has been best on average."""

    def __init__(self) -> None:
        self._kept, self._met = 3.0, 4.0  # tokens kept, and tokens that met the target; running sums

    def best(self, prices: Prices, extend_ms: float, most: int) -> tuple[int, float, float]:
        """Tokens to draw, tokens gained above plain decoding, and milliseconds of drafting; zeros where nothing pays.

        Args:
            prices: of this round.
            extend_ms: what the first token costs; every further one costs a level.
            most: the most tokens.
        """
        if most < 1:
            return 0, 0.0, 0.0
        n = np.arange(1, most + 1)
        draft_ms = extend_ms + (n - 1) * prices.level_ms[1]
        verify_ms = np.array(prices.verify_ms)
        gains = np.cumsum((self._kept / self._met) ** n) - prices.rate * (verify_ms[n + 1] - verify_ms[1] + draft_ms)
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            return 0, 0.0, 0.0
        return best + 1, float(gains[best]), float(draft_ms[best])

    def observe(self, n_tokens: int, n_drawn: int) -> None:
        """Learn from a round: of a chain of ``n_drawn`` tokens, ``n_tokens - 1`` were kept; older rounds count less."""
        n_met = min(n_tokens, n_drawn)
        keep = _REMEMBERED if n_met else 1.0
        self._kept = keep * self._kept + min(n_tokens - 1, n_met)
        self._met = keep * self._met + n_met
