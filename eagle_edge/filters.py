"""The tokens that may be chosen, and the filters that leave fewer of them.

Every filter is exact and its ties are settled: among equal scores the lowest token ids stay. Vocabularies are large, so
each first drops, by a bound that holds for certain, the tokens that cannot stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Candidates", "keep_min_p", "keep_top_k", "keep_top_p", "proposal"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may be chosen.

    Attributes:
        ids: [M] int32 token ids, ascending.
        scores: [M] float32 unnormalised log-probabilities, the largest being 0.
    """

    ids: Int32
    scores: Float32

    def probabilities(self) -> Float64:
        """[M] the probability of each candidate."""
        weights: Float64 = np.exp(self.scores).astype(np.float64)
        weights /= weights.sum()
        return weights

    def keep(self, index: npt.NDArray[np.intp]) -> Candidates:
        """The candidates at ``index`` (ascending)."""
        return Candidates(self.ids[index], self.scores[index])

    def find(self, token: int) -> int | None:
        """The index of ``token``, or None where it is no candidate."""
        at = int(np.searchsorted(self.ids, token))
        return at if at < len(self.ids) and self.ids[at] == token else None


def keep_top_k(candidates: Candidates, k: int) -> Candidates:
    """The k candidates with the highest scores; of equal ones the lowest ids."""
    scores = candidates.scores
    if k == 0 or k >= len(scores):
        return candidates
    # Of disjoint groups, the k-th largest maximum cannot exceed the k-th largest score: most scores drop out cheaply.
    n_groups = len(scores) // 64
    if k < n_groups:
        maxima = scores[: n_groups * 64].reshape(64, n_groups).max(axis=0)
        candidates = candidates.keep(np.flatnonzero(scores >= np.partition(maxima, n_groups - k)[n_groups - k]))
        scores = candidates.scores
    edge = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > edge)
    level = np.flatnonzero(scores == edge)[: k - len(above)]
    return candidates.keep(np.sort(np.concatenate([above, level])))


def keep_top_p(candidates: Candidates, top_p: float) -> Candidates:
    """The fewest most probable candidates that together have at least ``top_p``; of equal ones the lowest ids."""
    if top_p >= 1:
        return candidates
    weights = np.exp(candidates.scores)
    total = float(weights.sum(dtype=np.float64))
    # All candidates below this weight sum to less than half of what may be dropped, so none of them is needed.
    best_first = np.sort(weights[weights > 0.5 * (1 - top_p) * total / len(weights)])[::-1]
    reached = np.cumsum(best_first, dtype=np.float64)
    return keep_top_k(candidates, int(np.searchsorted(reached, top_p * total)) + 1)


def keep_min_p(candidates: Candidates, min_p: float) -> Candidates:
    """The candidates at least ``min_p`` times as probable as the most probable one."""
    if min_p <= 0:
        return candidates
    return candidates.keep(np.flatnonzero(candidates.scores >= np.float32(np.log(min_p))))


def proposal(ids: Int32, logits: Float32, temperature: float) -> Candidates:
    """The distribution softmax(logits / temperature) over the distinct token ids [M], for a draft that samples."""
    order = np.argsort(ids)
    scores = (logits[order] - logits.max()) / np.float32(temperature)
    return Candidates(ids[order].astype(np.int32), scores.astype(np.float32))
