"""How often drafted tokens are accepted, given what the drafter thinks of them; learnt while text is generated.

The head's log-probabilities are calibrated by a logistic regression on their logit (Platt 1999) with an offset for
every depth, because a head that reads its own guesses gets worse with depth. The regression is the Bayesian one of
assumed-density filtering: a Gaussian over the weights, updated by a Newton step every few rounds, that forgets slowly.
Probabilities here are conditional on the parent being accepted; a path's is their product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HeadCalibration", "SuffixCalibration"]

Float64 = npt.NDArray[np.float64]

_SUREST, _UNLIKELIEST = -1.2e-4, -14.0  # a log-probability and a logit; beyond, they say no more
_DEPTHS = 6  # depths with an offset of their own; deeper ones share the last
_AT_ONCE = 16, 256  # judged children to learn from at a time, at first and later: a step costs half a millisecond
_SETTLED = 32  # children to learn from at a time, by which a couple of hundred have been seen
_FORGET = 1 / 6400  # of what is known, per judged child
_PRIOR = np.diag([0.5, 1.5, *([4.0] * _DEPTHS)])  # precision of intercept, slope and offsets
_START = np.array([-1.0, 1.0, *([0.0] * _DEPTHS)])  # well below what the head says: an unknown one is tried with care


class HeadCalibration:
    """The probability that a child of an accepted node is accepted too."""

    def __init__(self) -> None:
        self._weights = _START.copy()
        self._as_list = _START.tolist()
        self._precision = _PRIOR.copy()
        self._noted: list[tuple[float, int, bool]] = []  # not learnt from yet
        self._at_once = _AT_ONCE[0]

    @property
    def is_new(self) -> bool:
        """Whether little has been learnt since the start, so that every round should teach."""
        return self._at_once < _SETTLED

    def __call__(self, logprob: Iterable[float], depth: int) -> list[float]:
        """The probabilities of children by ``logprob``, whose parent lies ``depth`` below the root."""
        weights = self._as_list
        start, slope = weights[0] + weights[2 + min(depth, _DEPTHS - 1)], weights[1]
        out = []
        for said in logprob:
            bounded = min(said, _SUREST)
            logit = max(bounded - math.log(-math.expm1(bounded)), _UNLIKELIEST)
            out.append(1 / (1 + math.exp(min(-start - slope * logit, 700.0))))  # restored weights may be any numbers
        return out

    def observe(self, logprob: Sequence[float], depth: Sequence[int], accepted: Sequence[bool]) -> None:
        """Learn from one round: children of accepted nodes, and which of them the target chose."""
        self._noted += zip(logprob, depth, accepted, strict=True)
        if len(self._noted) >= self._at_once:
            self._at_once = min(self._at_once + 2, _AT_ONCE[1])
            noted, self._noted = self._noted, []
            self._learn(*map(np.array, zip(*noted, strict=True)))

    def _learn(self, logprob: Float64, depth: npt.NDArray[np.int64], accepted: npt.NDArray[np.bool_]) -> None:
        n = len(logprob)
        features = np.zeros((n, 2 + _DEPTHS))
        features[:, 0] = 1
        features[:, 1] = _logit(logprob)
        features[np.arange(n), 2 + np.minimum(depth, _DEPTHS - 1)] = 1
        p = 1 / (1 + np.exp(-features @ self._weights))
        self._precision += n * _FORGET * (_PRIOR - self._precision)
        self._precision += (features * (p * (1 - p))[:, None]).T @ features
        self._weights += np.linalg.solve(self._precision, features.T @ (accepted - p))
        self._weights[1] = min(max(self._weights[1], 0.05), 3.0)  # a likelier token never counts less
        self._as_list = self._weights.tolist()

    def to_json(self) -> dict[str, Any]:
        """Everything learnt."""
        return {"weights": self._weights.tolist(), "precision": self._precision.tolist()}

    def restore(self, state: Any) -> None:
        """Take over what ``to_json`` gave.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        weights, precision = np.array(state["weights"], float), np.array(state["precision"], float)
        if weights.shape != _START.shape or precision.shape != _PRIOR.shape:
            raise ValueError("not a calibration")
        if not (np.isfinite(weights).all() and np.isfinite(precision).all()):
            raise ValueError("a calibration holds numbers that are not finite")
        if np.linalg.eigvalsh(precision).min() <= 0:
            raise ValueError("a calibration's precision is not positive")
        self._weights, self._precision, self._as_list = weights, precision, weights.tolist()


def _logit(logprob: npt.NDArray[Any]) -> Float64:
    """log(p / (1 - p)) for p = exp(logprob), within [-14, 9]."""
    bounded = np.minimum(logprob, _SUREST)
    return np.asarray(np.maximum(bounded - np.log(-np.expm1(bounded)), _UNLIKELIEST))


_LONGEST = 16  # matches that long or longer count as one
_WEIGHT = 4.0  # observations the first guess is worth
_REMEMBERED = 200.0  # observations of one length that are remembered
_WEIGHT_OF_OTHERS = 8.0  # observations that all earlier texts are worth in one


class SuffixCalibration:
    """The probability that the text goes on as it did where its last ``length`` tokens occurred before.

    Texts differ more than lengths do: what earlier ones were like counts as a few observations in each.
    """

    def __init__(self) -> None:
        self._hits = [_WEIGHT * length / (length + 3) for length in range(_LONGEST + 1)]
        self._tries = [_WEIGHT] * (_LONGEST + 1)
        self.begin()

    def begin(self) -> None:
        """Another text."""
        scale = [min(1.0, _WEIGHT_OF_OTHERS / tries) for tries in self._tries]
        self._hits_here = [hits * by for hits, by in zip(self._hits, scale, strict=True)]
        self._tries_here = [tries * by for tries, by in zip(self._tries, scale, strict=True)]

    def __call__(self, length: int, n: int) -> list[float]:
        """[n] probabilities of each proposed token, given that the ones before it were accepted."""
        at = [min(length + i, _LONGEST) for i in range(n)]
        return [self._hits_here[i] / self._tries_here[i] for i in at]

    def observe(self, length: int, n_accepted: int, n_tried: int) -> None:
        """Learn from one proposal: of ``n_tried`` tokens in a row that met the target, so many were accepted."""
        for i in range(min(n_accepted + 1, n_tried)):
            at = min(length + i, _LONGEST)
            keep = min(1.0, _REMEMBERED / self._tries[at])
            self._hits[at] = self._hits[at] * keep + (i < n_accepted)
            self._tries[at] = self._tries[at] * keep + 1
            self._hits_here[at] += i < n_accepted
            self._tries_here[at] += 1

    def to_json(self) -> dict[str, Any]:
        """Everything learnt."""
        return {"hits": self._hits[:], "tries": self._tries[:]}

    def restore(self, state: Any) -> None:
        """Take over what ``to_json`` gave.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        hits, tries = np.array(state["hits"], float), np.array(state["tries"], float)
        if hits.shape != (_LONGEST + 1,) or tries.shape != hits.shape:
            raise ValueError("not a calibration of suffixes")
        if not (np.isfinite(tries).all() and (hits >= 0).all() and (tries >= hits).all() and (tries > 0).all()):
            raise ValueError("a calibration of suffixes holds impossible counts")
        self._hits, self._tries = hits.tolist(), tries.tolist()
        self.begin()
