"""The candidates of one round: what may become a tree, and the chance that the text takes each of them.

Every candidate has a chance given its parent; a path's chance is their product, and the expected tokens of a tree are
the sum of its nodes' path chances (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276). So the best tree of n nodes
is the n likeliest candidates, and the best n is where one more costs more time than its chance is worth.

A round has a few dozen candidates and a few milliseconds: plain lists are several times as fast as arrays here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from .tree import Tree, chain, lone

__all__ = ["ROOT", "Guesses"]

ROOT = -1
_JUDGED = 4  # children of a node that are kept however unlikely, because the target's choice judges them
_HOPELESS = 0.004  # chance of a path below which no node was ever worth its verification


class Guesses:
    """C candidates under a root; a parent always has a smaller number than its children.

    Attributes:
        tokens: [C].
        parent: [C] candidate numbers, -1 for the root.
        logprob: [C] what the head says of the token given its parent; NaN where it says nothing.
        given: [C] the chance of being accepted given that the parent is.
        chance: [C] the chance that the whole path is accepted.
        children: candidate numbers by parent, likeliest first as they were added.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parent: list[int] = []
        self.logprob: list[float] = []
        self.given: list[float] = []
        self.chance: list[float] = []
        self.children: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, tokens: Sequence[int], logprob: Sequence[float], given: Sequence[float]) -> list[int]:
        """Add children of one node, likeliest first; returns the numbers of those that have any hope."""
        total = max(sum(given), 1.0)  # siblings exclude each other
        above = 1.0 if parent == ROOT else self.chance[parent]
        siblings = self.children.setdefault(parent, [])
        added = []
        for rank, (token, said, chance) in enumerate(zip(tokens, logprob, given, strict=True)):
            if rank >= _JUDGED and above * chance < _HOPELESS:
                break
            added.append(len(self.tokens))
            self.tokens.append(token)
            self.parent.append(parent)
            self.logprob.append(said)
            self.given.append(chance / total)
            self.chance.append(above * chance / total)
        siblings += added
        return added

    def child(self, node: int, token: int) -> int | None:
        """The child of a candidate (-1: of the root) with this token, or None."""
        return next((child for child in self.children.get(node, ()) if self.tokens[child] == token), None)

    def graft(self, tokens: Sequence[int], given: Sequence[float]) -> None:
        """Lay a chain over the candidates: ``given`` [n] is the chance of each token given the ones before it.

        Where both propose a token the higher chance counts, and what the chain gains its siblings lose.
        """
        node, path = ROOT, 1.0
        for token, chance in zip(tokens, given, strict=True):
            at = self.child(node, token)
            before = 0.0 if at is None else self.given[at]
            path *= max(chance, before)
            if path < _HOPELESS:
                break
            if chance > before:
                for sibling in self.children.get(node, ()):
                    self.given[sibling] *= (1 - chance) / max(1 - before, 1e-9)
            if at is None:
                at = len(self.tokens)
                self.tokens.append(token)
                self.parent.append(node)
                self.logprob.append(math.nan)
                self.given.append(chance)
                self.chance.append(path)
                self.children.setdefault(node, []).append(at)
            self.given[at] = max(chance, before)
            node = at
        for at, above in enumerate(self.parent):
            self.chance[at] = self.given[at] * (1.0 if above == ROOT else self.chance[above])

    def gains(self, most: int, verify_ms: Sequence[float], rate: float) -> list[float]:
        """[m + 1] by nodes below the root: expected tokens, less those that the added time is worth.

        Args:
            most: the most nodes below the root.
            verify_ms: by nodes, root included.
            rate: tokens a millisecond brings otherwise.
        """
        tokens = accumulate(sorted(self.chance, reverse=True)[:most], initial=rate * verify_ms[1])
        return [expected - rate * ms for expected, ms in zip(tokens, verify_ms[1:], strict=False)]

    def tree(self, root: int, n: int) -> Tree:
        """The tree of the ``n`` likeliest candidates under the token ``root``, each followed by its subtree."""
        if n == 0:
            return lone(root)
        kept = sorted(range(len(self)), key=lambda at: -self.chance[at])[:n]  # ties: a parent comes before its child
        below: dict[int, list[int]] = {}
        for at in kept:
            below.setdefault(self.parent[at], []).append(at)
        order, row_of = [], {ROOT: 0}
        stack = below.get(ROOT, [])[::-1]
        while stack:
            at = stack.pop()
            order.append(at)
            row_of[at] = len(order)
            stack += below.get(at, [])[::-1]
        tokens = [self.tokens[at] for at in order]
        scores = [math.log(max(self.chance[at], 1e-30)) for at in order]
        parents = [row_of[self.parent[at]] for at in order]
        if parents == list(range(n)):
            return chain(root, tokens, scores)
        logprob = np.array([0.0, *scores], np.float32)
        return Tree(np.array([root, *tokens], np.int32), np.array([ROOT, *parents], np.int32), logprob)
