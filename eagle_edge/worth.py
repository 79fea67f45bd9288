"""Whether to ask the head this round: as long as it pays, and then rarely, so that listening costs next to nothing."""

from __future__ import annotations

from .cost import Costs

__all__ = ["Worth"]

_SMOOTHING = 0.15
_LISTENING = 0.01  # share of the time that may go into asking while it does not pay
_WAITS = (8, 16, 32, 64)  # rounds between two times; the first that keeps to that share is the longest pause


class Worth:
    """What asking has been worth lately.

    Attributes:
        mean: running mean in tokens a round, less those that the time of asking would have brought otherwise.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self._pause = self._waited = 0

    def asks(self) -> bool:
        """Whether to ask this round."""
        self._waited += 1
        return self._waited > self._pause

    def note(self, value: float, costs: Costs) -> None:
        """Learn what it was worth this time; pauses double while that is nothing, and end when it is something."""
        self.mean += _SMOOTHING * (value - self.mean)
        self._waited = 0
        if self.mean >= 0 or value > 0:
            self._pause = 0
        else:
            self._pause = min(2 * self._pause + 1, _longest_pause(costs))


def _longest_pause(costs: Costs) -> int:
    """Rounds after which catching up with the text and listening cost the share that they may."""
    lone = costs.verify.at(1)
    return next((n for n in _WAITS if costs.extend.at(n) <= _LISTENING * n * lone), _WAITS[-1])
