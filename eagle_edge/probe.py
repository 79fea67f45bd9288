"""A few calls when an engine opens, so that its first text already knows what rows cost; once for files and machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from .cost import Costs
from .draft import Draft
from .kernels import settle_weights
from .target import Target
from .tree import chain

__all__ = ["probe"]

_TREES = (8, 4, 1)  # nodes; the first evaluations of all are slow, and what a lone row costs matters most
_MORE_TREES = (3, 2, 1, 2, 1)  # where evaluations are quick, sizes near each other matter too
_QUICK_MS = 20.0
_LEVELS = (1, 8)  # nodes
_PAIRS = (3, 32)  # 32 as after a pause
_SETTLING_S = 2.0  # that the weights may take, at most, before anything is timed
_RUNS = 3  # the first builds graphs, and any may be disturbed


def probe(costs: Costs, target: Target, draft: Draft | None) -> None:
    """Time a few evaluations of empty caches, which are left empty; curves that know something are left alone."""
    if costs.verify.is_empty:
        settle_weights(_SETTLING_S)
        for trees in (_TREES, _MORE_TREES):
            for n in trees:
                _evaluate(costs, target, n)
            if costs.verify.at(1) > _QUICK_MS:
                break
    if draft is None or not costs.extend.is_empty:
        return
    for n in _PAIRS:
        taps = np.zeros((n, target.tap_width), np.float32)

        def extend(n: int = n, taps: np.ndarray = taps) -> None:
            draft.rewind(0)
            draft.extend([0] * n, taps)

        costs.extend.observe(n, _fastest_ms(extend))
    for n in _LEVELS:
        tokens, parents = np.zeros(n, np.int32), np.full(n, -1, np.int32)

        def level(tokens: np.ndarray = tokens, parents: np.ndarray = parents) -> None:
            draft.rewind(draft.n_pairs)
            draft.level(tokens, parents, draft.max_top_k)

        costs.level.observe(n, _fastest_ms(level))
    draft.rewind(0)


def _evaluate(costs: Costs, target: Target, n: int) -> None:
    tree = chain(0, np.zeros(n - 1, np.int32))
    for _ in range(_RUNS):
        costs.verified(n, target.eval_tree(tree).ms)


def _fastest_ms(action: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_RUNS):
        start = time.perf_counter()
        action()
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best
