"""Asking the head: its calls in a round, under the round's noise, and what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .backlog import Backlog
from .cost import CostModel, Curve
from .expand import Children, Level
from .round import Round
from .same_noise import NO_NOISE, Head, Noise

__all__ = ["USUAL_PAIRS", "Asking", "Listener"]

Int32 = npt.NDArray[np.int32]

#: Pairs that the head reads in a round, where it drafts in every one.
USUAL_PAIRS = 3


class Listener(NamedTuple):
    """The head as a round finds it.

    Attributes:
        head: who can be asked.
        backlog: what it has not read yet; nothing can be asked where that is empty.
        noise: what it may guess with; none where the target draws otherwise, or nothing.
    """

    head: Head
    backlog: Backlog
    noise: Noise = NO_NOISE


class Asking:
    """Calls the head, and learns what that costs.

    Args:
        costs: what calls cost, corrected by every one.
        clock: seconds.

    Attributes:
        is_warm: whether the round before the latest that asked did so too. A head that has not been asked for a while
            is cold, and says little about what asking all the time costs.
    """

    def __init__(self, costs: CostModel, clock: Callable[[], float]) -> None:
        self.is_warm = False
        self._costs = costs
        self._clock = clock
        self._asked_at = -2  # the round that last did

    def read(self, this: Round, at: int, listener: Listener) -> tuple[list[int], list[float]]:
        """The head's first guesses once it has read what was committed: ids and log-probabilities [k], best first.

        Args:
            this: the round that asks; its times, in ms, are added to.
            at: its number.
            listener: who is asked.
        """
        head, n_pairs, extend = listener.head, len(listener.backlog), self._costs.at(this.n_threads).extend
        self.is_warm, self._asked_at = self._asked_at == at - 1, at
        this.noise.perturb(head, 1)
        start = self._clock()
        listener.backlog.read()
        self._lap(this, extend, n_pairs, start)
        this.draft_ms += extend.at(min(n_pairs, USUAL_PAIRS))
        return head.first[0].tolist(), head.first[1].tolist()

    def level(self, this: Round, head: Head) -> Level:
        """What evaluates further levels of the round that asked: nodes [n] give children [n, top_k] (``expand.py``)."""
        level_ms = self._costs.at(this.n_threads).level

        def level(tokens: Int32, parents: Int32, top_k: int) -> Children:
            this.n_levels += 1
            this.noise.perturb(head, this.n_levels + 1)
            children = head.level(tokens, parents, min(top_k, len(head.first[0])))
            self._lap(this, level_ms, len(tokens), this.heard)  # thinking about the ones before is part of the cost
            this.levels_ms += level_ms.at(len(tokens))
            return children

        return level

    def _lap(self, this: Round, curve: Curve, n: int, start: float) -> None:
        """Learn from a call of the head that began at ``start`` and ended now."""
        this.heard = now = self._clock()
        ms = (now - start) * 1e3
        this.head_ms += ms
        if self.is_warm or not curve.is_known(n):
            curve.observe(n, ms)
