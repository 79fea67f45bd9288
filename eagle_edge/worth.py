"""Whether to ask the head this round: as long as it pays, and then rarely, so that listening costs next to nothing."""

from __future__ import annotations

import math

__all__ = ["MARGIN", "Worth"]

_SMOOTHING = 0.04  # of a round in the mean
_FRESH = 0.08  # of a round after a pause
# Tokens a round that may be lost by asking while it does not pay. An ask out of a pause loses more than is counted: the
# head is cold then and has much to read, and evaluations take longer for a while (``plain.py``).
_LISTENING = 0.004
_LONGEST_PAUSE = 64  # rounds
#: Tokens that a choice has to promise above plain decoding: what looks best among many things is seldom quite as good.
MARGIN = 0.04


class Worth:
    """What asking has been worth lately.

    Attributes:
        mean: running mean in tokens a round, less those that the time of asking would have brought otherwise.
    """

    def __init__(self) -> None:
        self.mean = 2 * MARGIN  # a new head gets a hearing
        self._pause = self._waited = 0

    def asks(self) -> bool:
        """Whether to ask this round."""
        self._waited += 1
        return self._waited > self._pause

    def note(self, value: float) -> None:
        """Learn what it was worth this time: the more it has lost lately, the longer until the next time.

        A single good guess among bad ones is asked after once more, because what can be guessed comes in stretches.
        """
        self.mean += (_FRESH if self._waited > 1 else _SMOOTHING) * (value - self.mean)
        self._waited = 0
        dear = math.ceil(max(MARGIN - self.mean, 0.0) / _LISTENING)
        self._pause = 0 if value > MARGIN else min(dear, _LONGEST_PAUSE)
