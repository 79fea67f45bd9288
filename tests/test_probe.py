"""The first calls of an engine, which tell its first text what rows cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.cost import Costs
from eagle_edge.draft import Draft
from eagle_edge.engine import Engine
from eagle_edge.probe import probe, time_trees
from eagle_edge.target import Evaluation, Target
from eagle_edge.tree import Tree

pytestmark = pytest.mark.native


def test_an_unknown_machine_is_timed_once(tiny_target: Path, tiny_head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards small sizes are known and caches are empty, and nothing is timed again."""
    evaluated: list[int] = []
    with (
        Target(tiny_target, TargetParams(n_ctx=64, n_threads=1)) as target,
        Draft(tiny_head, tiny_target, n_ctx=64, n_threads=1, params=DraftParams(16, 4, 8)) as draft,
    ):
        target.set_taps(draft.config.taps)
        evaluate = target.eval_tree

        def noted(tree: Tree) -> Evaluation:
            evaluated.append(len(tree))
            return evaluate(tree)

        monkeypatch.setattr(target, "eval_tree", noted)
        costs = Costs()
        probe(costs, target, draft)
        assert all(costs.verify.is_known(n) for n in (1, 2, 3, 4, 6, 8))
        assert not costs.extend.is_empty
        assert not costs.level.is_empty
        assert (target.n_past, draft.n_pairs) == (0, 0)
        n_evaluations = len(evaluated)
        probe(costs, target, draft)
        assert len(evaluated) == n_evaluations


def test_sizes_take_turns(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is three times as fast in the end costs no size more than the others, and what was known goes."""
    n_evaluations = 0
    with Target(tiny_target, TargetParams(n_ctx=64, n_threads=1)) as target:

        def evaluate(tree: Tree) -> Evaluation:
            nonlocal n_evaluations
            n_evaluations += 1
            return Evaluation(target, 0, len(tree), (3.0 + 0.3 * len(tree)) * (3.0 - 0.05 * min(n_evaluations, 40)))

        monkeypatch.setattr(target, "eval_tree", evaluate)
        costs = Costs()
        costs.verify.observe(2, 77.0)
        time_trees(costs, target)
    for n in (2, 3, 4, 6):
        assert costs.verify.at(n) / costs.verify.at(1) == pytest.approx((3.0 + 0.3 * n) / 3.3, rel=0.05)


def test_a_target_timed_too_early_is_timed_again(
    tiny_target: Path, tiny_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next text that finds its large pages there, also in a later run; once, and the text stays the same."""
    settled, timed = [False], 0

    def counted(costs: Costs, target: Target) -> None:
        nonlocal timed
        timed += 1
        time_trees(costs, target)

    monkeypatch.setattr("eagle_edge.learnt.settle_weights", lambda seconds: settled[0])
    monkeypatch.setattr("eagle_edge.learnt.time_trees", counted)
    loading = TargetParams(n_ctx=176, n_threads=1)  # no other test has such a context, so nothing is known of it
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    with Engine(tiny_target, tiny_head, loading, exact="strict") as engine:
        expected = engine.complete([1, 2, 3], params).token_ids
        assert timed == 0
    with Engine(tiny_target, tiny_head, loading, exact="strict") as engine:
        assert engine.complete([1, 2, 3], params).token_ids == expected
        settled[0] = True
        assert engine.complete([1, 2, 3, 4], params).stats.reused_n == 2  # what it holds is kept
        assert timed == 1
        assert engine.complete([1, 2, 3], params).token_ids == expected
        assert timed == 1
    with Engine(tiny_target, tiny_head, loading, exact="strict") as engine:
        assert engine.complete([1, 2, 3], params).token_ids == expected
        assert timed == 1
