"""Pairs the head has not read yet: rounds that draft nothing cost it nothing, and it catches up in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Backlog", "Reader"]

Float32 = npt.NDArray[np.float32]


class Reader(Protocol):
    """The part of a draft that takes pairs."""

    @property
    def n_pairs(self) -> int:
        """Pairs it has read."""

    def extend(self, next_tokens: Sequence[int], taps: Float32, *, last: bool = True) -> None:
        """Read more."""


class Backlog:
    """Pairs of taps and next tokens that follow what a draft has read, by position.

    Args:
        draft: who will read them.
        most: pairs kept; past that they are read without asking for a draft, so memory stays bounded.
    """

    def __init__(self, draft: Reader, most: int = 64) -> None:
        self._draft = draft
        self._most = most
        self._start = 0  # the position of the first pair kept
        self._tokens: list[int] = []
        self._taps: list[Float32] = []  # [m, K*E] each, together as many rows as tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def n_pairs(self) -> int:
        """Pairs the draft has read or can read without a gap."""
        self._forget_read()
        return self._start + len(self)

    def add(self, position: int, next_tokens: Sequence[int], taps: Float32) -> None:
        """Note the pairs from ``position`` on: ``next_tokens`` [m] with ``taps`` [m, K*E]."""
        if position != self.n_pairs:
            raise ValueError(f"pairs from position {position} do not follow the {self.n_pairs} there are")
        self._tokens += next_tokens
        self._taps.append(taps)
        if len(self._tokens) > self._most:
            self.read(last=False)

    def read(self, *, last: bool = True) -> None:
        """Let the draft read all pairs; without ``last`` all but the newest, so that one is left to draft from."""
        n = len(self) if last else len(self) - 1
        if n > 0:
            taps = self._taps[0] if len(self._taps) == 1 else np.concatenate(self._taps)
            self._draft.extend(self._tokens[:n], taps[:n], last=last)
            self._keep(slice(n, None))
            self._start += n  # last: an interrupt before it is noticed as one before the reading was noted

    def rewind(self, n_pairs: int) -> None:
        """Forget pairs from position ``n_pairs`` on."""
        self._forget_read()
        n = max(0, n_pairs - self._start)
        if n < len(self):
            self._keep(slice(0, n))

    def _forget_read(self) -> None:
        """Drop what the draft has read; an interrupt may have come between its reading and our noting it."""
        n_read = self._draft.n_pairs - self._start
        if n_read != 0:
            self._keep(slice(n_read, None) if 0 < n_read < len(self._tokens) else slice(0, 0))
            self._start += n_read

    def _keep(self, rows: slice) -> None:
        self._tokens = self._tokens[rows]
        self._taps = [np.concatenate(self._taps)[rows]] if self._tokens else []
