"""Chains the draft samples instead of ranking: what the published rejection rule verifies (Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from . import noise
from .draft import Draft
from .filters import Candidates, proposal
from .growth import Prices
from .sampling import Sampler
from .tree import Tree, chain

__all__ = ["ChainLength", "sample_chain"]

_REMEMBERED = 0.98  # of a round, in the next one


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


class ChainLength:
    """How long a sampled chain should be: its chances are known only after it is drawn, so the best on average."""

    def __init__(self) -> None:
        self._kept, self._met = 3.0, 4.0  # tokens kept, and tokens that met the target; running sums

    def best(self, prices: Prices, extend_ms: float, most: int) -> tuple[int, float, float]:
        """Tokens to draw, tokens gained above plain decoding, and milliseconds of drafting; zeros where nothing pays.

        Args:
            prices: of this round.
            extend_ms: what the first token costs; every further one costs a level.
            most: the most tokens.
        """
        n = np.arange(1, most + 1)
        draft_ms = extend_ms + (n - 1) * prices.level_ms[1]
        verify_ms = np.array(prices.verify_ms)
        gains = np.cumsum((self._kept / self._met) ** n) - prices.rate * (verify_ms[n + 1] - verify_ms[1] + draft_ms)
        best = int(np.argmax(gains)) if most else 0
        if most < 1 or gains[best] <= 0:
            return 0, 0.0, 0.0
        return best + 1, float(gains[best]), float(draft_ms[best])

    def observe(self, n_tokens: int, n_drawn: int) -> None:
        """Learn from a round: of a chain of ``n_drawn`` tokens, ``n_tokens - 1`` were kept; older rounds count less."""
        n_met = min(n_tokens, n_drawn)
        keep = _REMEMBERED if n_met else 1.0
        self._kept = keep * self._kept + min(n_tokens - 1, n_met)
        self._met = keep * self._met + n_met
