"""The tokens that may be chosen, and the filters that leave fewer of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .native import array, lib, out_array

__all__ = ["Candidates", "filtered", "proposal"]

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


def filtered(
    logits: Float32, top: float, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Candidates:
    """What top-k, top-p and min-p leave of a vocabulary, in this order; of equal ones the lowest ids.

    Native: in NumPy it took as long as a tenth of an evaluation, for every token.

    Args:
        logits: [V] float32, none of them NaN or +inf; banned tokens have -inf.
        top: the largest of them, finite.
        temperature: above 0; scores are ``(logits - top) / temperature``.
        top_k: the most tokens; 0 for any number.
        top_p: the fewest most probable tokens that have this probability together; 1 for all.
        min_p: tokens at least this fraction as probable as the most probable one; 0 for all.
    """
    values, pointer = array(logits, np.float32)
    top_k = min(top_k, len(values))
    room = (top_k or len(values),)
    (ids, ids_pointer), (scores, scores_pointer) = out_array(room, np.int32), out_array(room, np.float32)
    n = lib.ee_filter(pointer, len(values), top, temperature, top_k, top_p, min_p, ids_pointer, scores_pointer)
    return Candidates(ids[:n].copy(), scores[:n].copy())


def proposal(ids: Int32, logits: Float32, temperature: float) -> Candidates:
    """The distribution softmax(logits / temperature) over the distinct token ids [M], for a draft that samples."""
    order = np.argsort(ids)
    scores = (logits[order] - logits.max()) / np.float32(temperature)
    return Candidates(ids[order].astype(np.int32), scores.astype(np.float32))
