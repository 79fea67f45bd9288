"""The candidates of one round: what may become a tree, and the chance that the text takes each of them.

Every candidate has a chance given its parent; a path's chance is their product, and the expected tokens of a tree are
the sum of its nodes' path chances (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276). So the best tree of n nodes
is the n likeliest candidates, and the best n is where one more costs more time than its chance is worth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .expand import depth_first
from .tree import Tree

__all__ = ["ROOT", "Guesses"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

ROOT = -1


class Guesses:
    """C candidates under a root; a parent always has a smaller number than its children.

    Attributes:
        tokens: [C] int32.
        parent: [C] int32 candidate numbers, -1 for the root.
        depth: [C] int32 edges below the root, at least 1.
        logprob: [C] float32 what the head says of the token given its parent; NaN where it says nothing.
        given: [C] float64 the chance of being accepted given that the parent is.
        chance: [C] float64 the chance that the whole path is accepted.
    """

    def __init__(self) -> None:
        self.tokens = self.parent = self.depth = np.empty(0, np.int32)
        self.logprob = np.empty(0, np.float32)
        self.given = self.chance = np.empty(0)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Int32, parent: int | Int32, logprob: Float32, given: Float64) -> npt.NDArray[np.intp]:
        """Add the children [n] of one node, or of n rows of nodes [n, B]; returns their numbers."""
        above = np.repeat(np.atleast_1d(np.asarray(parent, np.int32)), tokens.shape[-1])
        start, top = len(self), above < 0
        total = given.sum(axis=-1, keepdims=True)
        given = given / np.maximum(total, 1.0)  # siblings exclude each other
        self.tokens = np.concatenate([self.tokens, tokens.ravel()])
        self.parent = np.concatenate([self.parent, above])
        depth = 1 + np.where(top, 0, self.depth[above] if start else 0)
        self.depth = np.concatenate([self.depth, depth.astype(np.int32)])
        self.logprob = np.concatenate([self.logprob, logprob.ravel()])
        self.given = np.concatenate([self.given, given.ravel()])
        chance = given.ravel() * np.where(top, 1.0, self.chance[above] if start else 1.0)
        self.chance = np.concatenate([self.chance, chance])
        return np.arange(start, len(self))

    def child(self, node: int, token: int) -> int | None:
        """The child of a candidate (-1: of the root) with this token, or None."""
        found = np.flatnonzero((self.parent == node) & (self.tokens == token))
        return int(found[0]) if len(found) else None

    def graft(self, tokens: Sequence[int], given: Float64) -> None:
        """Lay a chain over the candidates: ``given`` [n] is the chance of each token given the ones before it.

        Where both propose a token the higher chance counts, and what the chain gains its siblings lose.
        """
        if not tokens:
            return
        node = ROOT
        for token, chance in zip(tokens, given.tolist(), strict=True):
            at = self.child(node, token)
            siblings = np.flatnonzero(self.parent == node)
            before = 0.0 if at is None else float(self.given[at])
            if chance > before:
                self.given[siblings] *= (1 - chance) / max(1 - before, 1e-9)
            if at is None:
                at = int(self.add(np.array([token], np.int32), node, _SILENT, np.array([chance]))[0])
            self.given[at] = max(chance, before)
            node = at
        for depth in range(1, int(self.depth.max(initial=0)) + 1):
            row = np.flatnonzero(self.depth == depth)
            above = self.parent[row]
            self.chance[row] = self.given[row] * np.where(above < 0, 1.0, self.chance[above])

    def gains(self, most: int, verify_ms: Float64, rate: float) -> Float64:
        """[m + 1] by nodes below the root: expected tokens, less those that the added time is worth.

        Args:
            most: the most nodes below the root.
            verify_ms: by nodes, root included.
            rate: tokens a millisecond brings otherwise.
        """
        likeliest = -np.partition(-self.chance, most - 1)[:most] if len(self) > most > 0 else self.chance
        m = min(most, len(self))
        tokens = np.concatenate([[0.0], np.cumsum(np.sort(likeliest)[::-1][:m])])
        return np.asarray(tokens - rate * (verify_ms[1 : m + 2] - verify_ms[1]))

    def tree(self, root: int, n: int) -> Tree:
        """The tree of the ``n`` likeliest candidates under the token ``root``."""
        kept = np.argsort(-self.chance, kind="stable")[:n]
        scores = np.log(np.maximum(self.chance, 1e-30)).astype(np.float32)
        return depth_first(root, kept, self.tokens, self.parent, scores)


_SILENT = np.array([np.nan], np.float32)
