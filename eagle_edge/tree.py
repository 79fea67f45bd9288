"""A token tree is one array of parents; everything else follows from it.

``parent[0] == -1`` is the root, the newest token of the text, and ``parent[i] < i`` for every other node. A chain is
the tree whose parent is ``i - 1``; plain decoding is the tree that is only its root. This module knows no models.

Letters used in every shape comment of the project: P prompt, N nodes, K taps, E target width, H head width,
V vocabulary, R reduced draft vocabulary, D depth, B branches per node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Tree", "chain", "lone"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Tree:
    """N proposed tokens under a root that is already decided.

    Attributes:
        tokens: [N] int32; ``tokens[0]`` is the root.
        parent: [N] int32; -1 for the root, otherwise a smaller node number.
        logprob: [N] float32; the draft's log-probability of the path from the root to the node, 0 for the root.

    Raises:
        ValueError: the arrays differ in length, are empty, or a parent is not an earlier node.
    """

    tokens: Int32
    parent: Int32
    logprob: Float32

    def __post_init__(self) -> None:
        n = len(self.tokens)
        shared = self.parent.base is _CHAIN and 0 < n == len(self.parent) == len(self.logprob)
        if shared and self.parent[0] == -1 and self.parent[-1] == n - 2:
            return  # parents i - 1, as most trees have: other slices of the shared ones begin or end elsewhere
        if n == 0 or len(self.parent) != n or len(self.logprob) != n:
            raise ValueError(f"a tree needs equally long arrays, got {n}, {len(self.parent)}, {len(self.logprob)}")
        if self.parent[0] != -1 or (n > 1 and (self.parent[1:].min() < 0 or (self.parent >= np.arange(n)).any())):
            raise ValueError("parent[0] must be -1 and every other parent an earlier node")

    def __len__(self) -> int:
        return len(self.tokens)

    def depth(self) -> Int32:
        """[N] the number of edges between the root and each node."""
        depth = np.zeros(len(self), np.int32)
        for node in range(1, len(self)):
            depth[node] = depth[self.parent[node]] + 1
        return depth

    def path(self, node: int) -> list[int]:
        """The nodes from the root to ``node``, both included."""
        path = [node]
        while self.parent[path[-1]] >= 0:
            path.append(int(self.parent[path[-1]]))
        return path[::-1]

    def ancestors(self) -> npt.NDArray[np.bool_]:
        """[N, N] True where the column is the row itself or one of its ancestors: the attention mask."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node in range(1, len(self)):
            mask[node] |= mask[self.parent[node]]
        return mask

    def child(self, node: int, token: int) -> int | None:
        """The child of ``node`` that proposes ``token``, or None."""
        if self.parent.base is _CHAIN:
            following = node + 1
            return following if following < len(self) and self.tokens[following] == token else None
        if len(self) > _FEW:
            hits = np.flatnonzero((self.parent == node) & (self.tokens == token))
            return int(hits[0]) if len(hits) else None
        return next((i for i in range(node + 1, len(self)) if self.parent[i] == node and self.tokens[i] == token), None)


_FEW = 16  # nodes that are looked at one by one sooner than by NumPy
_CHAIN = np.arange(-1, 255, dtype=np.int32)  # parents
_ZEROS = np.zeros(len(_CHAIN), np.float32)
_CHAIN.flags.writeable = _ZEROS.flags.writeable = False  # trees share them


def chain(root: int, tokens: Sequence[int] | Int32, logprob: Sequence[float] | Float32 | None = None) -> Tree:
    """The tree in which every node has at most one child: ``root`` followed by ``tokens`` [N-1]."""
    n = len(tokens) + 1
    parent = _CHAIN[:n] if n <= len(_CHAIN) else np.arange(-1, n - 1, dtype=np.int32)
    if logprob is None:
        logs = _ZEROS[:n] if n <= len(_ZEROS) else np.zeros(n, np.float32)
    else:
        logs = np.array([0.0, *logprob], np.float32)
    return Tree(np.array([root, *tokens], np.int32), parent, logs)


def lone(root: int) -> Tree:
    """The tree that is only its root: plain decoding."""
    return Tree(np.array([root], np.int32), _CHAIN[:1], _ZEROS[:1])
