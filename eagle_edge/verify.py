"""Which drafted tokens the text keeps: a walk from the root of the tree along the target's own choices.

At every node the target's logits decide one token; a rule says how a drafted child takes part in that decision:

    gumbel     the sampler picks without looking at the draft, and the walk follows the child that proposes the pick.
               One seed gives one text, whatever is drafted. Temperature 0 always takes this rule.
    siblings   EAGLE-2: drafted children are tried in order, each accepted with its probability under the target, and
               a rejected one is removed. Exact for drafts that are no random sample (Li et al. 2024, "EAGLE-2").
    rejection  a drafted token, sampled from the draft's q, is accepted with min(1, p/q); otherwise the residual
               max(p - q, 0) is sampled (Leviathan et al. 2023, Chen et al. 2023). For chains.

Every pick advances penalties and grammar before the next, as plain decoding would. Only the sampler's state changes
here; the caller commits the path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from . import noise
from .errors import GrammarError, NoTokenLeftError
from .filters import Candidates
from .sampling import Sampler, TokenLogprob, logprobs
from .tree import Tree

__all__ = ["Evaluation", "Verified", "verify"]

Float32 = npt.NDArray[np.float32]

#: By node: the distribution its child was sampled from.
Proposals = Mapping[int, Candidates]


class Evaluation(Protocol):
    """The target's answer to a tree; rows are fetched one by one, only along the walk."""

    def peek(self, node: int) -> Float32:
        """[V] float32 logits of the token after ``node``, to be read at once."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What one verification decided.

    Attributes:
        path: accepted nodes below the root, in order; may be empty.
        tokens: the accepted tokens and one more that the target chose at the end of the path (the bonus).
        logprobs: one entry per token when the sampler reports log-probabilities, otherwise empty.
        ended: the last token ends the generation.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    ended: bool


def verify(
    tree: Tree,
    evaluation: Evaluation,
    sampler: Sampler,
    position: int,
    limit: int | None = None,
    proposals: Proposals | None = None,
) -> Verified:
    """The longest path the target agrees with and the token it chooses after it.

    Args:
        tree: what was evaluated; its root is the last token of the text.
        evaluation: gives the logits of a node.
        sampler: decides, and advances by every token of the result.
        position: of the first token decided here, which is the number of tokens up to and including the root.
        limit: the most tokens to decide, at least 1.
        proposals: for the rule "rejection", the draft's distribution at every node that has a child.

    Raises:
        NoTokenLeftError, GrammarError: no token can follow the root, or the grammar is too costly to follow there.
            Deeper in the tree the walk just ends one token earlier, so that the error comes where plain decoding
            meets it.
    """
    path: list[int] = []
    tokens: list[int] = []
    reported: list[TokenLogprob] = []
    node, ended = 0, False
    while True:
        logits = evaluation.peek(node)
        try:
            token, child = _decide(tree, node, logits, sampler, position + len(tokens), proposals)
            sampler.accept(token)
        except (GrammarError, NoTokenLeftError):
            if not tokens:
                raise
            path.pop()
            break
        tokens.append(token)
        if sampler.params.n_logprobs is not None:
            reported.append(logprobs(logits, token, sampler.params.n_logprobs))
        ended = sampler.is_end(token)
        if child is None or ended or len(tokens) == limit:
            break
        path.append(child)
        node = child
    return Verified(tuple(path), tuple(tokens), tuple(reported), ended)


def _decide(
    tree: Tree, node: int, logits: Float32, sampler: Sampler, position: int, proposals: Proposals | None
) -> tuple[int, int | None]:
    """The token at ``position`` and the child of ``node`` that proposed it, or None."""
    rule = sampler.params.rule
    if rule == "gumbel" or sampler.params.temperature == 0:
        token = sampler.pick(logits, position)
        return token, tree.child(node, token)
    children = [int(child) for child in np.flatnonzero(tree.parent == node)]
    draw = _uniforms(sampler, position)
    if rule == "siblings":
        return _siblings(tree, children, sampler.process(logits), sampler, position, draw)
    if len(children) > 1:
        raise ValueError(f"node {node} has {len(children)} children; the rule 'rejection' verifies chains only")
    if children and (proposals is None or node not in proposals):
        raise ValueError(f"the rule 'rejection' needs the draft's distribution at node {node}; pass it in proposals")
    q = proposals[node] if children and proposals is not None else None
    return _rejection(tree, children, sampler.process(logits), q, sampler, position, draw)


def _uniforms(sampler: Sampler, position: int) -> Callable[[int], float]:
    key = noise.key(sampler.seed, position, noise.ACCEPT)
    return lambda index: noise.uniform(key, index)


def _siblings(
    tree: Tree, children: list[int], p: Candidates, sampler: Sampler, position: int, draw: Callable[[int], float]
) -> tuple[int, int | None]:
    """EAGLE-2's rule for deterministic drafts (SafeAILab/EAGLE, eagle/model/utils.py, evaluate_posterior)."""
    weights = p.probabilities()
    for index, child in enumerate(children):
        token = int(tree.tokens[child])
        at = p.find(token)
        if at is None:
            continue
        rest = weights.sum() - weights[at]
        if draw(index) * weights.sum() <= weights[at] or rest <= 0:
            return token, child
        weights[at] = 0
    return sampler.choose(p.keep(np.flatnonzero(weights > 0)), position, noise.RESIDUAL), None


def _rejection(
    tree: Tree,
    children: list[int],
    p: Candidates,
    q: Candidates | None,
    sampler: Sampler,
    position: int,
    draw: Callable[[int], float],
) -> tuple[int, int | None]:
    """The rule of Leviathan et al. (2023), algorithm 1: p the target's, q the draft's distribution of one child."""
    if not children or q is None:
        return sampler.choose(p, position, noise.RESIDUAL), None
    token = int(tree.tokens[children[0]])
    p_all, q_on_p, at = p.probabilities(), _on(q, p), p.find(token)
    if at is not None and draw(0) * q_on_p[at] <= p_all[at]:
        return token, children[0]
    residual = np.maximum(p_all - q_on_p, 0)
    left = np.flatnonzero(residual > 0)
    if len(left):  # empty only where rounding hides that p equals q
        scores = np.log(residual[left])
        p = Candidates(p.ids[left], (scores - scores.max()).astype(np.float32))
    return sampler.choose(p, position, noise.RESIDUAL), None


def _on(q: Candidates, p: Candidates) -> npt.NDArray[np.float64]:
    """[M] the probability under ``q`` of every candidate of ``p``."""
    at = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
    return np.where(q.ids[at] == p.ids, q.probabilities()[at], 0.0)
