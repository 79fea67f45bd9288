"""What calls cost on this machine: milliseconds by rows, learnt from the calls that happen anyway.

A curve keeps one running mean for every number of rows that occurred, so the corners of a kernel (groups of four rows
on repacked CPU weights, eight on CUDA) stay where they are; between them it interpolates. The level moves with the
load of the machine: recent calls over what was expected of them give one factor for the whole curve.

This module knows neither models nor trees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CostModel", "Costs", "Curve"]

Float64 = npt.NDArray[np.float64]

_MEMORY = 64.0  # calls of a size that its mean remembers
_FORGOTTEN = 128.0  # calls of other sizes after which a mean is half forgotten
_KNOWN = 3  # calls after which a size can tell a busy machine from an unknown cost
_BORROWED = 4  # calls that a cost with another number of threads counts as
_DOUBT = 0.2  # share of a cost that may be too much where it rests on a single call; less the more it rests on
_WANDERED = 40_000.0  # calls since the last of a size after which all of its cost is in doubt; as the root of them
_MOST_DOUBT = 0.6  # share of a cost
_ACCIDENT = 30.0  # times a mean that a brief call counts as at most
_TO_LOAD = 0.2  # of a surprise that is put down to the load of the machine; more at the start of a text
_SELDOM = 1 / 8  # of a surprise: sizes that take more are not seen all the time
_STALE = 0.3  # of a surprise, at most, that a size takes which has not been seen for long
_SURPRISE = 0.3  # logarithm of the largest surprise: beyond, a call says more about an accident than about its cost
_CHANGED = 1.0  # the same for a call that follows such a one, in the same direction
_GUESSED_SLOPE = 0.15  # of the cost of a row that one more costs, while only one size was seen
_REFRESH = 32  # observations between two fits of the whole curve


class Curve:
    """Expected milliseconds of a call by its rows, non-decreasing.

    Args:
        n_max: the most rows it keeps a mean for; beyond, it goes on as a straight line.
        brief: calls take so little time that other programs rarely hold one up, but then for many times as long: the
            mean with all its accidents is what they cost, and none of them tells the load.

    Attributes:
        busy: what calls take now over what they take on average.
    """

    def __init__(self, n_max: int, *, brief: bool = False) -> None:
        self.n_max = n_max
        self._brief = brief
        self.busy = 1.0
        # By rows; plain lists, because one number at a time is read and written.
        self._mean = [0.0] * (n_max + 1)  # at no load
        self._count = [0.0] * (n_max + 1)  # 0: never seen
        self._seen = [0] * (n_max + 1)  # the latest call of that size
        self._n_calls = self._n_of_text = 0
        self._surprise = 0.0  # of the last call
        self._lists = [0.0] * (n_max + 1), [0.0] * (n_max + 1)  # at no load, by rows: expected, and optimistic
        self._stale = 0

    @property
    def is_empty(self) -> bool:
        """True before the first observation."""
        return self._n_calls == 0 and not any(self._count)

    def observe(self, n: int, ms: float) -> None:
        """Learn from a call of ``n`` rows that took ``ms``.

        A surprise is shared between the load, which all sizes have in common, and the size itself: little where the
        size is seen all the time, more the longer ago its last call was (the gains of a Kalman filter, simplified).
        It counts on a logarithmic scale and up to a bound, equally in both directions: calls are late more often than
        early, and whatever that does to the load must not be what it undoes to the sizes that are seen most.
        Of the first calls of a size the fastest counts.
        """
        if not 1 <= n <= self.n_max or not ms > 0:
            return
        count, mean = self._count[n], self._mean[n]
        self._n_calls += 1
        if count < _KNOWN:
            now = ms / self.busy
            self._mean[n] = min(mean, now) if count else now
            share = 1 / (count + 1)
        elif self._brief:
            share = max(1 / (count + 1), 1 / _MEMORY)
            self._mean[n] = mean + share * (min(ms, _ACCIDENT * mean) - mean)
        else:
            surprise, before = math.log(ms / (mean * self.busy)), self._surprise
            self._surprise = surprise
            again = min(before, surprise) > _SURPRISE or max(before, surprise) < -_SURPRISE
            most = _CHANGED if again else _SURPRISE
            surprise = min(max(surprise, -most), most)
            self._n_of_text += 1
            to_load = 0.5 if again else max(1 / (1 + self._n_of_text), _TO_LOAD)
            self.busy *= math.exp(to_load * surprise)
            age = self._n_calls - self._seen[n]
            share = max(1 / (count + 1), min(age / (age + _FORGOTTEN), _STALE))
            # Loads come and go at different speeds. A size that is seen all the time would keep the difference, text by
            # text, and the others would look ever dearer: so it takes a fixed share of what the load takes.
            to_size = share * (1 - to_load if share > _SELDOM else (1 / _TO_LOAD - 1) * to_load)
            self._mean[n] = mean * math.exp(to_size * surprise)
        self._count[n] = min(1 / share, _MEMORY)
        self._seen[n] = self._n_calls
        self._stale += _REFRESH if count < _KNOWN else 1

    def begin(self) -> None:
        """Another text, whose length changes all costs alike: its first surprises say more about that than others."""
        self._n_of_text = 0

    def at(self, n: int) -> float:
        """Milliseconds expected of ``n`` rows now."""
        if self._stale >= _REFRESH:
            self._fit()
        if n <= self.n_max:
            return self._lists[0][n] * self.busy
        expected, slope = self._lists[0], (self._lists[0][-1] - self._lists[0][1]) / max(1, self.n_max - 1)
        return (expected[-1] + slope * (n - self.n_max)) * self.busy

    def up_to(self, n: int, *, optimistic: bool = False) -> list[float]:
        """[n + 1] milliseconds by rows; optimistic: as little as they may cost by all that was seen."""
        if self._stale >= _REFRESH:
            self._fit()
        busy = self.busy
        return [ms * busy for ms in self._lists[optimistic][: n + 1]]

    def is_known(self, n: int) -> bool:
        """Whether calls of ``n`` rows were observed often enough to be told apart from the load."""
        return n <= self.n_max and self._count[n] >= _KNOWN

    def _fit(self) -> None:
        self._stale = 0
        mean, count = np.array(self._mean), np.array(self._count)
        seen = np.flatnonzero(count)
        if not len(seen):
            return
        fitted = _isotonic(mean[seen], count[seen])
        rows = np.arange(self.n_max + 1)
        expected = np.interp(rows, seen, fitted)
        beyond = rows > seen[-1]
        slope = (fitted[-1] - fitted[0]) / (seen[-1] - seen[0]) if len(seen) > 1 else _GUESSED_SLOPE * fitted[0]
        expected[beyond] += slope * (rows[beyond] - seen[-1])
        age = self._n_calls - np.array(self._seen)[seen]
        doubt = _DOUBT / count[seen] + np.sqrt(age / _WANDERED)
        hoped = (fitted * (1 - doubt.clip(max=_MOST_DOUBT))).clip(fitted[0])  # no tree is cheaper than its root alone
        steps = np.maximum(np.searchsorted(seen, rows, side="right") - 1, 0)
        optimistic = np.minimum(expected, hoped[steps])
        # Past twice the largest call ever seen, hope ends.
        unknown = rows > 2 * seen[-1]
        optimistic[unknown] = expected[unknown]
        self._lists = expected.tolist(), optimistic.tolist()

    def to_json(self) -> list[list[float]]:
        """[rows, mean, count] of every number of rows that occurred."""
        return [[n, round(self._mean[n], 5), int(count)] for n, count in enumerate(self._count) if count]

    def restore(self, points: Any) -> None:
        """Take over what ``to_json`` gave; anything else raises ValueError, TypeError or IndexError."""
        for n, mean, count in points:
            if not (1 <= n <= self.n_max and 0 < mean < 1e6 and count >= 1):
                raise ValueError(f"{[n, mean, count]} is no point of a cost curve")
            self._mean[int(n)], self._count[int(n)] = float(mean), min(float(count), _MEMORY)
        self._stale = _REFRESH


def _isotonic(values: Float64, weights: Float64) -> Float64:
    """The non-decreasing sequence closest to ``values``: pool adjacent violators (Ayer et al. 1955)."""
    blocks: list[list[float]] = []  # value, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            upper, lower = blocks.pop(), blocks.pop()
            total = lower[1] + upper[1]
            blocks.append([(lower[0] * lower[1] + upper[0] * upper[1]) / total, total, lower[2] + upper[2]])
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])


class Costs:
    """The curves of one number of threads.

    Attributes:
        verify: the target's evaluation of a tree, by its nodes, root included.
        extend: the head reads committed pairs and ranks the first children, by pairs.
        level: the head evaluates one level, by its nodes.
    """

    def __init__(self) -> None:
        self.verify = Curve(256)
        self.extend = Curve(256, brief=True)
        self.level = Curve(256, brief=True)
        self._begins = False

    def begin(self) -> None:
        """Another text, whose first evaluation teaches nothing: it builds a graph and finds the caches cold."""
        self._begins = True
        self.verify.begin()

    def verified(self, n: int, ms: float) -> None:
        """Learn from an evaluation of ``n`` nodes."""
        if not self._begins or self.verify.is_empty:
            self.verify.observe(n, ms)
        self._begins = False

    def forget_trees(self) -> None:
        """Know nothing of evaluations any more."""
        self.verify = Curve(self.verify.n_max)

    def curves(self) -> dict[str, Curve]:
        """All of them by name."""
        return {"verify": self.verify, "extend": self.extend, "level": self.level}

    def to_json(self) -> dict[str, Any]:
        """Everything learnt, without the load of the moment."""
        return {name: curve.to_json() for name, curve in self.curves().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_json`` gave.

        Raises:
            ValueError, TypeError, KeyError, IndexError: it is something else.
        """
        for name, curve in self.curves().items():
            curve.restore(state[name])


class CostModel:
    """The costs by number of threads, which a busy machine may lower while a text is generated."""

    def __init__(self) -> None:
        self._by_threads: dict[int, Costs] = {}

    def at(self, n_threads: int) -> Costs:
        """The costs with this many threads; at first those of the nearest number known."""
        if n_threads not in self._by_threads:
            costs = Costs()
            if self._by_threads:
                nearest = self._by_threads[min(self._by_threads, key=lambda known: abs(known - n_threads))]
                for name, curve in nearest.curves().items():
                    costs.curves()[name].restore([[n, ms, _BORROWED] for n, ms, _ in curve.to_json()])
            self._by_threads[n_threads] = costs
        return self._by_threads[n_threads]

    def begin(self) -> None:
        """Another text."""
        for costs in self._by_threads.values():
            costs.begin()

    def to_json(self) -> dict[str, Any]:
        """Everything learnt, without the load of the moment."""
        return {str(n): costs.to_json() for n, costs in self._by_threads.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_json`` gave.

        Raises:
            ValueError, TypeError, KeyError, IndexError: it is something else.
        """
        for n_threads, known in state.items():
            costs = Costs()
            costs.restore(known)
            self._by_threads[int(n_threads)] = costs
