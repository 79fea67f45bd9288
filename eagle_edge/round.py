"""One round of the policy: what it proposed, to learn from what the target says to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .guesses import ROOT, Guesses

__all__ = ["Round"]

_JUDGED = 4  # children of a node to learn from, likeliest first


@dataclass(slots=True)
class Round:
    """What a round proposed, to learn from what the target says to it."""

    guesses: Guesses = field(default_factory=Guesses)
    suffix: list[int] = field(default_factory=list)
    suffix_length: int = 0
    samples: bool = False  # whether the target draws its tokens
    noisy: bool = False  # whether the head guessed with the target's noise
    sampled: bool = False  # a chain drawn at random, without guesses
    n_nodes: int = 1
    n_threads: int = 1
    ordinary_ms: float = 0.0  # of verifying, as expected of the tree that would be taken without exploring
    draft_ms: float = 0.0  # as expected of the head's calls

    def outcomes(self, tokens: Sequence[int]) -> tuple[list[float], list[int], list[bool]]:
        """What is known of the head's guesses: log-probability, depth of the parent, and whether the target agreed.

        The target's choice at an accepted node judges all children of that node, whether they were verified or not.
        """
        logprobs: list[float] = []
        depths: list[int] = []
        accepted: list[bool] = []
        node: int | None = ROOT
        for depth, token in enumerate(tokens):
            children = np.flatnonzero(self.guesses.parent == node)[:_JUDGED]
            for child in children[~np.isnan(self.guesses.logprob[children])].tolist():
                logprobs.append(float(self.guesses.logprob[child]))
                depths.append(depth)
                accepted.append(int(self.guesses.tokens[child]) == token)
            node = self.guesses.child(ROOT if node is None else node, token)
            if node is None:
                break
        return logprobs, depths, accepted
