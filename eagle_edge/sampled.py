"""A chain the draft samples instead of ranking: what the published rejection rule verifies (Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from . import noise
from .draft import Draft
from .filters import Candidates, proposal
from .sampling import Sampler
from .tree import Tree, chain

__all__ = ["sample_chain"]


def sample_chain(
    draft: Draft, root: int, n: int, sampler: Sampler, position: int
) -> tuple[Tree, Mapping[int, Candidates]]:
    """A chain of ``n`` tokens under ``root``, each drawn from the draft's distribution at the sampler's temperature.

    Args:
        draft: extended up to ``root``.
        root: the newest token of the text.
        n: tokens to draw; 0 gives only the root.
        sampler: gives the temperature and the noise of each position.
        position: of the first drawn token.

    Returns:
        The chain, and by node the distribution its child was drawn from.
    """
    tokens: list[int] = []
    proposals = {}
    for depth in range(n):
        if depth > 0:
            draft.level(np.array(tokens[-1:], np.int32), np.array([depth - 2], np.int32), 1)
        q = proposal(draft.vocab, draft.logits(depth - 1), sampler.params.temperature)
        proposals[depth] = q
        tokens.append(sampler.choose(q, position + depth, noise.DRAFT))
    return chain(root, np.array(tokens, np.int32)), proposals
