"""A few calls when an engine opens, so that its first text already knows what rows cost; once for files and machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from .cost import Costs
from .draft import Draft
from .target import Target
from .tree import chain

__all__ = ["WIDEST", "probe", "time_trees"]

WIDEST = 8  # nodes of the largest tree that is timed
_SIZES, _TURNS = (1, 2, 3, 4, 6), 6  # nodes, and how often each of them is timed where evaluations are quick
_SLOW_SIZES, _SLOW_TURNS = (1, 4), 2
_SLOW_MS = 20.0
_COUNTS = 8  # calls that what was found counts as
_LEVELS = (1, 8)  # nodes
_PAIRS = (3, 32)  # 32 as after a pause
_RUNS = 3  # the first builds graphs, and any may be disturbed


def time_trees(costs: Costs, target: Target) -> None:
    """Time evaluations after what ``target`` holds, and commit none; what was known of them is forgotten.

    Sizes take turns, up and down: a machine that gets faster or busier meanwhile is as kind to one as to the others.
    """

    def evaluate(n: int) -> float:
        return target.eval_tree(chain(0, np.zeros(n - 1, np.int32))).ms

    slow = min(evaluate(1) for _ in range(2)) > _SLOW_MS
    sizes, turns = (_SLOW_SIZES, _SLOW_TURNS) if slow else (_SIZES, _TURNS)
    widest = min([evaluate(1), evaluate(WIDEST)][1] for _ in range(_RUNS))  # with the change to a graph of its own
    timed: dict[int, list[float]] = {n: [] for n in sizes}
    for turn in range(turns):
        for n in sizes if turn % 2 else reversed(sizes):
            timed[n].append(evaluate(n))
    points = [(n, statistics.median(ms), _COUNTS) for n, ms in timed.items()]
    costs.forget_trees()
    costs.verify.restore([*points, (WIDEST, widest, _RUNS)])


def probe(costs: Costs, target: Target, draft: Draft | None) -> None:
    """Time a few calls with empty caches, which are left empty; curves that know something are left alone."""
    if costs.verify.is_empty:
        time_trees(costs, target)
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


def _fastest_ms(action: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_RUNS):
        start = time.perf_counter()
        action()
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best
