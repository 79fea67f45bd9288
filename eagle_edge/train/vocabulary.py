"""The draft vocabulary: the tokens the target itself would say most often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Vocabulary", "choose"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """R target ids, ascending unless they were taken over from a head.

    Attributes:
        ids: [R] int64 target id of each draft id (``d2t`` as llama.cpp stores it; checkpoints store ``ids - arange``).
        n_vocab: V.
        coverage: the share of the counted answer tokens that the R ids cover, 0..1.
    """

    ids: Int64
    n_vocab: int
    coverage: float

    def draft_ids(self) -> Int64:
        """[V] the draft id of each target id, -1 for tokens outside."""
        out = np.full(self.n_vocab, -1, np.int64)
        out[self.ids] = np.arange(len(self.ids))
        return out

    def covering(self, counts: npt.NDArray[np.float64]) -> Vocabulary:
        """The same ids with their coverage of ``counts`` [V]."""
        return Vocabulary(self.ids, self.n_vocab, float(counts[self.ids].sum() / max(counts.sum(), 1e-9)))


def choose(counts: npt.NDArray[np.float64], size: int) -> Vocabulary:
    """The ``size`` most frequent of V tokens; ties go to the lower id.

    Args:
        counts: [V] how often each token is said; sums of probabilities are steadier than observed counts.
        size: R, at most V.

    Raises:
        ValueError: ``size`` is not in 1..V, or nothing was counted.
    """
    if not 1 <= size <= len(counts):
        raise ValueError(f"the draft vocabulary must have 1..{len(counts)} tokens, got {size}")
    total = float(counts.sum())
    if not total > 0:
        raise ValueError("no answer tokens were counted, so no draft vocabulary can be chosen")
    ids = np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int64)
    return Vocabulary(ids, len(counts), float(counts[ids].sum()) / total)
