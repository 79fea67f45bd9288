"""EAGLE-2's dynamic tree: expand by cumulative log-probability, then keep the best nodes (arXiv 2406.16858, section 4).

Each level evaluates the ``top_k`` best of the newest candidates together; every child of an evaluated node is a
candidate, and the best ``total - 1`` of all candidates become the tree. A child is never likelier than its parent, so
a node outside the best so far cannot have children inside them: such nodes are not evaluated, and when none is left the
expansion stops. The tree is the same as without that shortcut.
This module knows no models: it sees children and their log-probabilities.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from .config import DraftParams
from .tree import Tree

__all__ = ["Children", "Level", "depth_first", "expand"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Children = tuple[Int32, Float32]  # tokens and log-probabilities, best first along the last axis

ROOT = -1


class Level(Protocol):
    """Evaluates one level of a round's tree."""

    def __call__(self, tokens: Int32, parents: Int32, top_k: int) -> Children:
        """The ``top_k`` children of each node: [n, top_k] tokens and log-probabilities.

        Nodes are numbered in the order they are evaluated in this round; ``parents`` [n] are such numbers, or -1 for
        the root.
        """


def expand(root: int, first: Children, level: Level, params: DraftParams, room: int) -> Tree:
    """The tree drafted under ``root``, the likeliest path first.

    Args:
        root: the newest token of the text.
        first: the children of the root: [top_k] tokens and log-probabilities.
        level: evaluates the levels below.
        params: the size of the tree.
        room: the deepest a node may lie; 0 gives only the root.
    """
    m = params.total - 1
    if m == 0 or room <= 0:
        return Tree(np.array([root], np.int32), np.array([ROOT], np.int32), np.zeros(1, np.float32))
    tokens, scores = first[0][: params.top_k], first[1][: params.top_k]
    parent = np.full(len(tokens), ROOT, np.int32)  # [candidates] as candidate numbers
    node_of = {ROOT: ROOT}  # candidate number to node number, for evaluated candidates
    newest = np.arange(len(tokens))
    for _ in range(min(params.depth, room - 1)):
        frontier = _frontier(scores, newest, m, params.top_k)
        if len(frontier) == 0:
            break
        node_parents = np.array([node_of[p] for p in parent[frontier].tolist()], np.int32)
        child_tokens, child_logprobs = level(tokens[frontier], node_parents, params.top_k)  # [n, top_k]
        node_of |= {candidate: len(node_of) - 1 + i for i, candidate in enumerate(frontier.tolist())}
        newest = np.arange(len(tokens), len(tokens) + child_tokens.size)
        tokens = np.concatenate([tokens, child_tokens.ravel()])
        scores = np.concatenate([scores, (scores[frontier][:, None] + child_logprobs).ravel()])
        parent = np.concatenate([parent, np.repeat(frontier.astype(np.int32), child_tokens.shape[1])])
    kept = np.argsort(-scores, kind="stable")[:m]  # a parent has a smaller number than its child: ties keep it
    return depth_first(root, kept, tokens, parent, scores)


def _frontier(scores: Float32, newest: npt.NDArray[np.intp], m: int, top_k: int) -> npt.NDArray[np.intp]:
    """The ``top_k`` best of the newest candidates whose children could still be among the ``m`` best of all."""
    best = newest[np.argsort(-scores[newest], kind="stable")[:top_k]]
    if len(scores) <= m:
        return best
    bar = float(np.partition(scores, len(scores) - m)[len(scores) - m])  # the m-th best
    kept: npt.NDArray[np.intp] = best[scores[best] > bar]
    return kept


def depth_first(root: int, kept: npt.NDArray[np.intp], tokens: Int32, parent: Int32, scores: Float32) -> Tree:
    """The kept candidates under ``root``, each followed by its subtree, the likelier child first."""
    children: dict[int, list[int]] = {}
    for candidate in kept.tolist():  # best first
        children.setdefault(int(parent[candidate]), []).append(candidate)
    order: list[int] = []
    row_of: dict[int, int] = {ROOT: 0}
    stack = children.get(ROOT, [])[::-1]
    while stack:
        candidate = stack.pop()
        order.append(candidate)
        row_of[candidate] = len(order)
        stack += children.get(candidate, [])[::-1]
    rows = np.array([row_of[p] for p in parent[order].tolist()], np.int32)
    return Tree(
        np.concatenate([np.array([root], np.int32), tokens[order].astype(np.int32)]),
        np.concatenate([np.array([ROOT], np.int32), rows]),
        np.concatenate([np.zeros(1, np.float32), scores[order].astype(np.float32)]),
    )
