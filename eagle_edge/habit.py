"""What a round does where its guesses are ordinary ones, without working it out.

Working a round out takes a fifth of a small target's evaluation, and most often what comes out is a chain. As long as
prices stay as they are, two bounds for each of its guesses say the same: whether to ask for the next one, and whether
more than a chain may pay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .expand import Level
from .growth import Growth, Prices
from .guesses import ROOT, Guesses
from .tree import Tree, chain, lone

__all__ = ["Followed", "Habit"]

Calibrate = Callable[[list[float], int], list[float]]  # log-probabilities and the depth of the parent to chances


@dataclass(slots=True)
class Followed:
    """A chain of likeliest guesses, as far as it was followed.

    Attributes:
        children: tokens and log-probabilities, best first, of what may follow the root and each guess asked about.
        given: the chances of the two likeliest of each, given their parent.
        gains: [n] tokens that verifying n guesses is expected to bring, less those that its time is worth.
        may_branch: it was left because more than a chain may pay.
    """

    children: list[tuple[list[int], list[float]]]
    given: list[list[float]] = field(default_factory=list)
    gains: list[float] = field(default_factory=lambda: [0.0])
    may_branch: bool = False

    def chain(self, root: int, n: int) -> Tree:
        """The first ``n`` guesses under the token ``root``."""
        return chain(root, [tokens[0] for tokens, _ in self.children[:n]]) if n else lone(root)

    def add_to(self, guesses: Guesses, calibrate: Calibrate | None = None, top_k: int = 2) -> list[int]:
        """Make candidates of the ``top_k`` likeliest children of each; returns those that were asked about, in order.

        Args:
            guesses: empty; they grow.
            calibrate: gives chances where those that are known do not do.
            top_k: children of each.
        """
        at, evaluated = ROOT, []
        for depth, (tokens, logprob) in enumerate(self.children):
            said = logprob[:top_k]
            given = self.given[depth][: len(said)] if calibrate is None else calibrate(said, depth)
            likeliest, *_ = guesses.add(at, tokens[:top_k], said, given)
            evaluated.append(at := likeliest)
        return evaluated[:-1]


class Habit:
    """What prices mean for chains.

    Args:
        prices: of a round.
        growth: knows what children have been like.
        work_ms: what working a round out takes.
    """

    def __init__(self, prices: Prices, growth: Growth, work_ms: float) -> None:
        self.prices = prices
        self._growth = growth
        self._work = prices.rate * work_ms
        self._hopeless = prices.of_one_more([0.0])  # below it no number of first guesses is worth its verification
        self._bounds: list[tuple[float, float]] = []

    def follow(self, first: tuple[list[int], list[float]], level: Level, calibrate: Calibrate, most: int) -> Followed:
        """Ask for the children of the likeliest guess, and so on, as long as that is expected to pay.

        Args:
            first: tokens and log-probabilities of what may follow the root, best first.
            level: evaluates nodes, numbered in the order of evaluation.
            calibrate: the chances of children by log-probability and the depth of their parent.
            most: guesses, at least 1.
        """
        out, most = Followed([first]), min(most, self.prices.most)
        path, expected, rate, verify_ms = 1.0, 0.0, self.prices.rate, self.prices.verify_ms
        for n in range(1, most + 1):
            tokens, logprob = out.children[-1]
            likeliest, other, *_ = *calibrate(logprob[:2], n - 1), 0.0
            out.given.append([likeliest, other])
            if n > 1:
                self._growth.remember(n - 1, out.given[-1])
            promising, branching = self._bounds_of(n)
            if path * other >= branching and (n > 1 or likeliest >= self._hopeless):
                out.may_branch = True
                break
            path *= likeliest
            expected += path
            out.gains.append(expected - rate * (verify_ms[n + 1] - verify_ms[1]))
            if path < promising or n == most:
                break
            children, said = level(np.array(tokens[:1], np.int32), np.array([n - 2], np.int32), len(first[0]))
            out.children.append((children[0].tolist(), said[0].tolist()))
        return out

    def _bounds_of(self, n: int) -> tuple[float, float]:
        """Chances of a path to the n-th guess: from which on asking for what follows may pay, or a guess beside it."""
        while len(self._bounds) < n:
            at = len(self._bounds) + 1
            price = self.prices.of_one_more([0.0] * at + [1.0])
            self._bounds.append((self._growth.promising(at, price, self.prices), price + self._work))
        return self._bounds[n - 1]
