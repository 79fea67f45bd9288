"""A machine and a text without models: costs by rows, a head that is right as often as it says (or not), a clock.

Time passes only when a simulated call says so, hence every run gives the same figures. The text is drawn from the
head's own probabilities after a distortion, so how often each candidate is right is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle_edge.asking import Listener
from eagle_edge.backlog import Backlog
from eagle_edge.config import DraftParams
from eagle_edge.expand import Children, expand
from eagle_edge.policy import Policy
from eagle_edge.replay import Machine
from eagle_edge.same_noise import NO_NOISE, Noise
from eagle_edge.tree import Tree

N_VOCAB = 1000
TOP_K = 10
_BREAKS = 0.04  # of the tokens that repeat others are followed by a gap


@dataclass
class Text:
    """A text and what a head says about it.

    Attributes:
        skill: 1: tokens come as often as the head says; 0: never; between: that share of it.
        sharpness: the larger the surer the head is of its first guess.
        phrase: tokens; where above 0 the text repeats its first ``phrase`` tokens for ever,
        gap: but now and then says so many tokens that nobody can guess.
    """

    skill: float = 1.0
    sharpness: float = 2.0
    seed: int = 0
    phrase: int = 0
    gap: int = 0
    ids: list[int] = field(default_factory=lambda: [1])

    def said(self, path: tuple[int, ...], position: int) -> Children:
        """The head's children after ``path`` below ``position`` tokens of text: best first."""
        rng = np.random.default_rng([self.seed, position, len(path), *path[-2:]])
        sure = rng.beta(self.sharpness, 1.0)
        rank = sure * (1 - sure) ** np.arange(TOP_K)
        tokens = rng.choice(N_VOCAB, TOP_K, replace=False).astype(np.int32)
        return tokens, np.log(np.maximum(rank, 1e-9)).astype(np.float32)

    def token(self, position: int) -> int:
        """The text's token at ``position``; drawn the first time it is asked for."""
        while position >= len(self.ids):
            at = len(self.ids)
            if self.phrase and at > self.phrase:
                novel = self.gap and any(
                    np.random.default_rng([self.seed, at - i]).random() < _BREAKS for i in range(self.gap)
                )
                self.ids.append(N_VOCAB + at if novel else self.ids[1 + (at - 1) % self.phrase])
                continue
            rng = np.random.default_rng([self.seed, at, 1])
            tokens, logprob = self.said((), at - 1)  # what the head says one token ahead decides the draw
            draw = rng.random() / max(self.skill, 1e-9)
            rank = int(np.searchsorted(np.cumsum(np.exp(logprob)), draw))
            self.ids.append(int(tokens[rank]) if rank < TOP_K else N_VOCAB + at)
        return self.ids[position]


class SimulatedHead:
    """Guesses for a text. On the text's own path it says what it says one token ahead, anywhere else nonsense."""

    def __init__(self, text: Text, machine: Machine, fade: float = 1.0) -> None:
        self.text, self.machine, self.fade = text, machine, fade
        self.n_pairs = 0
        self._paths: list[tuple[int, ...]] = []

    @property
    def first(self) -> Children:
        return self._children(())

    def extend(self, next_tokens: Sequence[int], taps: Any, *, last: bool = True) -> None:
        self.machine.spend(self.machine.extend(len(next_tokens)))
        self.n_pairs += len(next_tokens)
        self._paths = []

    def level(self, tokens: Any, parents: Any, top_k: int) -> Children:
        self.machine.spend(self.machine.level(len(tokens)))
        above = [self._paths[p] if p >= 0 else () for p in parents.tolist()]
        new = [(*path, int(token)) for path, token in zip(above, tokens, strict=True)]
        self._paths += new
        found = [self._children(path) for path in new]
        return np.stack([t[:top_k] for t, _ in found]), np.stack([p[:top_k] for _, p in found])

    def perturb(self, noise: Any, reach: float = math.inf) -> None: ...

    def _children(self, path: tuple[int, ...]) -> Children:
        at = self.n_pairs + 1
        true = tuple(self.text.token(at + i) for i in range(len(path)))
        position = at - 1 + len(path)
        return self.text.said((), position) if path == true else self.text.said(path, position)


def accepted(tree: Tree, text: Text, position: int) -> list[int]:
    """The tokens one verification gives: the path that agrees with the text, and one more."""
    node = 0
    tokens: list[int] = []
    while True:
        tokens.append(text.token(position + len(tokens)))
        child = tree.child(node, tokens[-1])
        if child is None:
            return tokens
        node = child


def run(
    text: Text, machine: Machine, n_tokens: int, how: Policy | DraftParams, with_head: bool = True, noisy: bool = False
) -> tuple[float, list[int]]:
    """Tokens per millisecond of a generation, and the nodes of each tree, root included.

    Where it is ``noisy`` the target has noise for the head, which says the same with it here.
    """
    noise = Noise(lambda depth: np.zeros(N_VOCAB, np.float32)) if noisy else NO_NOISE
    head, start, sizes = SimulatedHead(text, machine), machine.ms, []
    backlog = Backlog(head)
    ids = [text.token(0), text.token(1)]
    backlog.add(0, ids[1:], np.zeros((1, 1), np.float32))
    while len(ids) < n_tokens:
        if isinstance(how, Policy):
            tree = how.propose(ids, 1000, 1, Listener(head, backlog, noise) if with_head else None)
        elif how.total == 1:
            tree = Tree(np.array(ids[-1:], np.int32), np.array([-1], np.int32), np.zeros(1, np.float32))
        else:
            backlog.read()
            tree = expand(ids[-1], head.first, head.level, how, 1000)
        before = machine.ms
        machine.spend(machine.verify(len(tree)))
        tokens = accepted(tree, text, len(ids))
        if isinstance(how, Policy):
            how.observe(tokens, len(tree), machine.ms - before)
        backlog.add(len(ids) - 1, tokens, np.zeros((len(tokens), 1), np.float32))
        ids += tokens
        sizes.append(len(tree))
    return (len(ids) - 2) / (machine.ms - start), sizes
