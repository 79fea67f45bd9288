"""The first calls of an engine, which tell its first text what rows cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_edge.config import DraftParams, TargetParams
from eagle_edge.cost import Costs
from eagle_edge.draft import Draft
from eagle_edge.probe import probe
from eagle_edge.target import Evaluation, Target
from eagle_edge.tree import Tree

pytestmark = pytest.mark.native


def test_an_unknown_machine_is_timed_once_when_its_weights_have_settled(
    tiny_target: Path, tiny_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first evaluation it waits for large pages; afterwards caches are empty, and nothing is timed again."""
    events: list[str] = []
    with (
        Target(tiny_target, TargetParams(n_ctx=64, n_threads=1)) as target,
        Draft(tiny_head, tiny_target, n_ctx=64, n_threads=1, params=DraftParams(16, 4, 8)) as draft,
    ):
        target.set_taps(draft.config.taps)
        evaluate = target.eval_tree

        def noted(tree: Tree) -> Evaluation:
            events.append("evaluate")
            return evaluate(tree)

        monkeypatch.setattr("eagle_edge.probe.settle_weights", lambda seconds: events.append(f"wait {seconds:.0f} s"))
        monkeypatch.setattr(target, "eval_tree", noted)
        costs = Costs()
        probe(costs, target, draft)
        assert events[:2] == ["wait 2 s", "evaluate"]
        assert events.count("wait 2 s") == 1
        assert all(costs.verify.is_known(n) for n in (1, 2, 3, 4, 8))
        assert not costs.extend.is_empty
        assert not costs.level.is_empty
        assert (target.n_past, draft.n_pairs) == (0, 0)
        events.clear()
        probe(costs, target, draft)
        assert events == []
