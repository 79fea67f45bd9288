"""One round of the policy: what it proposed, to learn from what the target says to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from .guesses import ROOT, Guesses
from .habit import Followed
from .same_noise import NO_NOISE, Noise

__all__ = ["Kind", "Round"]

_JUDGED = 4  # children of a node to learn from, likeliest first


class Kind(Enum):
    """How a round was decided, which takes more time the more of it there is."""

    IDLE = 0
    REPEATED = 1  # from the text's own repetitions alone
    HABIT = 2
    WORKED_OUT = 3


@dataclass(slots=True)
class Round:
    """What a round proposed, to learn from what the target says to it."""

    guesses: Guesses = field(default_factory=Guesses)
    followed: Followed | None = None  # what the head guessed of a chain, before anything was worked out
    suffix: list[int] = field(default_factory=list)
    suffix_length: int = 0
    given: list[float] = field(default_factory=list)  # chances of the repetition's tokens, each given the one before
    without: float = 0.0  # tokens that the repetition gains without the head
    drawn: bool = False  # whether the target draws its tokens
    samples: bool = False  # whether it draws them with noise that the head may be given
    noise: Noise = NO_NOISE  # the target's, that the head guesses with
    sampled: bool = False  # a chain drawn at random, without guesses
    kind: Kind = Kind.IDLE
    teaches: bool = True  # whether to learn from it
    n_levels: int = 0  # that the head evaluated
    n_nodes: int = 1
    n_threads: int = 1
    ordinary_ms: float = 0.0  # of verifying, as expected of the tree that would be taken without exploring
    draft_ms: float = 0.0  # as expected of asking the head
    levels_ms: float = 0.0  # of that, what more than its first guesses costs
    head_ms: float = 0.0  # that its calls took, and what lay between them
    heard: float = 0.0  # seconds, when its latest call ended
    verify_ms: float = 0.0  # that the evaluation took
    started: float = 0.0  # seconds

    @property
    def noisy(self) -> bool:
        """Whether the head guesses with the target's noise."""
        return self.noise.at is not None

    def outcomes(self, tokens: Sequence[int]) -> tuple[list[float], list[int], list[bool]]:
        """What is known of the head's guesses: log-probability, depth of the parent, and whether the target agreed.

        The target's choice at an accepted node judges all children of that node, whether they were verified or not.
        """
        logprobs: list[float] = []
        depths: list[int] = []
        accepted: list[bool] = []
        guesses, node = self.guesses, ROOT
        for depth, token in enumerate(tokens):
            for judged in guesses.children.get(node, [])[:_JUDGED]:
                if not math.isnan(guesses.logprob[judged]):
                    logprobs.append(guesses.logprob[judged])
                    depths.append(depth)
                    accepted.append(guesses.tokens[judged] == token)
            child = guesses.child(node, token)
            if child is None:
                break
            node = child
        return logprobs, depths, accepted
