"""Rounds that try another size than the one that looks best, because what is never tried is never known.

What drafting is compared with has to be known as of now, and a text that is always drafted never shows it: so now and
then a round verifies its root alone, best one that is worth little. And a size that is believed dear is never drafted,
even where it is cheap: so a small share of the time goes into sizes by what they may cost at least (optimism in the
face of uncertainty, Auer et al. 2002).
"""

from __future__ import annotations

import math

__all__ = ["Exploration"]

_SMOOTHING = 1 / 32  # of a round in the running gain
_LOOKS = 4  # rounds between two looks for a size that may be cheaper than believed
_EXPLORING = 0.005  # share of the time that may go into such sizes
_COMPARE = 64  # rounds after which a lone row is timed again; in a round worth little, or thrice as late in any
_FIRST_COMPARE = 8  # the same at first, when what was learnt before may hold no more; twice as many each time
_SURPRISING = 0.25  # logarithm of the factor by which a lone row has to surprise to be timed again at once
_LONE_RUNS = 3  # times in a row at most


class Exploration:
    """Says when to try what, and keeps within its share of the time."""

    def __init__(self) -> None:
        self._compare = _FIRST_COMPARE
        self._since_lone = self._n_lone = 0  # rounds since a lone row was timed; those repeated because they surprised
        self._usual_gain = 0.0  # running mean
        self._spent_ms = self._explored_ms = 0.0

    @property
    def is_due(self) -> bool:
        """Whether a round that is worth little should verify its root alone."""
        return self._since_lone >= self._compare

    def wants_lone(self, gain: float) -> bool:
        """Whether this round, worth ``gain`` tokens, should."""
        return self._since_lone > self._compare * (1 if gain < self._usual_gain else 3)

    def may_look(self, n_rounds: int) -> bool:
        """Whether this round, after ``n_rounds``, may take a size by what it costs at least."""
        return n_rounds % _LOOKS == 0 and self._explored_ms <= _EXPLORING * self._spent_ms

    def note_round(self) -> None:
        """Another round begins that may time something else than a lone row."""
        self._since_lone += 1

    def note_gain(self, gain: float) -> None:
        """Learn what a round is worth, in tokens."""
        self._usual_gain += _SMOOTHING * (gain - self._usual_gain)

    def note_lone(self, ms: float, expected_ms: float) -> None:
        """Learn that a lone row took ``ms``; where that is a surprise, the next rounds should tell whether it stays."""
        surprised = expected_ms > 0 and abs(math.log(ms / expected_ms)) > _SURPRISING
        again = surprised and self._n_lone < _LONE_RUNS
        self._n_lone = self._n_lone + 1 if again else 0
        self._since_lone = 3 * _COMPARE if again else 0
        self._compare = self._compare if again else min(2 * self._compare, _COMPARE)

    def note_time(self, ms: float, explored_ms: float) -> None:
        """Learn what a round took, and how much of it went into trying another size."""
        self._spent_ms += ms
        self._explored_ms += explored_ms
