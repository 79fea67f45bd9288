"""Guessing a sample with the target's own noise, where that guesses better.

At a temperature T above 0 the target takes the token with the largest logit + T * noise (Gumbel-max), and the noise
depends on the position alone. A head that adds the same to its own logits guesses the sample instead of the mode; not
dividing both by T changes no order, and leaves scores that say how likely a guess is (divided, a small T makes the
head look sure of everything). What min-p will not let the target pick, the head leaves out too. How much all this helps
depends on the head, the temperature and the filters, so both ways are compared by their first guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .expand import Children

__all__ = ["NO_NOISE", "Head", "Noise", "SameNoise"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

_MEMORY = 128  # rounds that a share remembers
_TRY = 16  # rounds after which the other way is tried
_CLEARLY = 0.05  # more right guesses without the noise than with it, before it is left out
_PRIOR = 0.3, 8  # share of right guesses, and rounds that this counts as


class Head(Protocol):
    """The part of a draft that a policy uses."""

    @property
    def first(self) -> Children:
        """Children of the last pair read."""

    def level(self, tokens: Int32, parents: Int32, top_k: int) -> Children:
        """Children of nodes of this round's tree."""

    def perturb(self, noise: Float32 | None, reach: float = math.inf) -> None:
        """Rank children by softmax(logits + noise) from now on, those last that lie further below the best."""


class Noise:
    """The target's noise, for a head; nothing where there is none.

    Args:
        at: [R] by depth below the root, what the target will add to its logits when it picks a token there.
        reach: logits below the largest one, further than which the target is not expected to pick a token.
    """

    def __init__(self, at: Callable[[int], Float32] | None, reach: float = math.inf) -> None:
        self.at = at
        self._reach = reach

    def perturb(self, head: Head, depth: int) -> None:
        """From now on children lie ``depth`` below the root."""
        if self.at is not None:
            head.perturb(self.at(depth), self._reach)

    def stop(self, head: Head) -> None:
        """Perturb no more."""
        if self.at is not None:
            head.perturb(None)


NO_NOISE = Noise(None)


class SameNoise:
    """Whether to guess with the noise: unless that is clearly worse, by running shares of right first guesses."""

    def __init__(self) -> None:
        self._right = dict.fromkeys((False, True), _PRIOR[0])
        self._n = dict.fromkeys((False, True), _PRIOR[1])
        self._since_other = 0

    def chooses(self) -> bool:
        """Whether to guess with the noise this time."""
        better = self._right[False] <= self._right[True] + _CLEARLY
        self._since_other += 1
        if self._since_other >= _TRY:
            self._since_other = 0
            return not better
        return better

    def note(self, noisy: bool, right: bool) -> None:
        """Learn whether the first guess was right."""
        self._n[noisy] = min(self._n[noisy] + 1, _MEMORY)
        self._right[noisy] += (right - self._right[noisy]) / self._n[noisy]

    def to_json(self) -> list[list[float]]:
        """The shares, and how many rounds each rests on."""
        return [[self._right[way], self._n[way]] for way in (False, True)]

    def restore(self, state: Any) -> None:
        """Take over what ``to_json`` gave; anything else raises ValueError or TypeError."""
        plain, noisy = ((float(share), int(n)) for share, n in state)
        if not all(0 <= share <= 1 and 1 <= n <= _MEMORY for share, n in (plain, noisy)):
            raise ValueError(f"{state} are no shares")
        self._right = {False: plain[0], True: noisy[0]}
        self._n = {False: plain[1], True: noisy[1]}
