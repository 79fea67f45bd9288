"""What an evaluation takes where nothing is drafted: less than a lone row does between drafts.

On a machine whose caches just hold the target it was 8 to 25 % less, and a dozen plain rounds until then; the head, the
further rows and the Python around them each add a few percent. So what drafting competes with is known only from runs
of plain rounds, which a text that is always drafted does not have: where drafting is not worth much, one is called for
now and then.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["Plain"]

_SETTLED = 8  # plain rounds in a row after which an evaluation takes about what it takes without any draft
_RUN = 24  # plain rounds of a run that is called for
_MOST_CALLS = 2 * _RUN  # for the rounds of one run: a text that repeats itself may never let it get long
_INTERVAL = 512  # rounds after which another run is called for
_FIRST = 64  # the same where nothing is known
_CLEARLY = 0.25  # tokens that asking is worth, beyond which a few percent of an evaluation do not matter
_SMOOTHING = 1 / 32  # of a round in the running share
_LEAST = 0.7  # share that is believed


class Plain:
    """Tells when rounds should be plain, and learns from those that are.

    Attributes:
        share: of a lone row's time between drafts that one takes without any.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._since = _INTERVAL - _FIRST  # rounds since the last run
        self._run = self._called = 0  # plain rounds in a row; those called for
        self._n = 0  # rounds that the share rests on

    def wants_round(self, worth: float) -> bool:
        """Whether this round should be plain, to be asked once a round.

        Args:
            worth: tokens a round that asking the head has been worth lately.
        """
        if self._since < _INTERVAL or worth > _CLEARLY:
            return False
        self._called += 1
        if self._called > _MOST_CALLS:
            self._since = self._called = 0
        return True

    @property
    def is_settled(self) -> bool:
        """Whether the latest round took what it would without any draft."""
        return self._run > _SETTLED

    def begin(self) -> None:
        """Another text."""
        self._run = 0

    def note_round(self, plain: bool) -> None:
        """Another round, plain or not."""
        self._run = self._run + 1 if plain else 0
        self._since += 1
        if self._run >= _RUN:
            self._since = self._called = 0

    def note(self, ms: float, lone_ms: float) -> None:
        """Learn that a settled evaluation took ``ms``, where a lone row between drafts takes ``lone_ms``."""
        self._n += 1
        share = min(max(ms / lone_ms, _LEAST), 1.0)
        self.share += max(1 / self._n, _SMOOTHING) * (share - self.share)

    def to_json(self) -> float:
        """What is worth keeping."""
        return self.share

    def restore(self, state: Any) -> None:
        """Take over what ``to_json`` gave; anything else raises ValueError or TypeError."""
        if not math.isfinite(state):
            raise ValueError(f"{state} is no share")
        self.share, self._n = min(max(float(state), _LEAST), 1.0), round(1 / _SMOOTHING)
        self._since = 0
