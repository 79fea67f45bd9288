"""The split of a budget, and runs under one; what is stored where the disk is small; where training stops."""

from __future__ import annotations

import dataclasses
import json
import resource
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
from test_train_loop import LOOP, corpus, make_trainer
from test_train_run import Silent, prompts, tiny_run
from tiny import make_recurrent

from eagle_edge.errors import EagleEdgeError, PairError
from eagle_edge.train.answers import finished_shards
from eagle_edge.train.budget import Clock, Plan, plan
from eagle_edge.train.evaluate import SHAPES, Examiner
from eagle_edge.train.finish import read_result
from eagle_edge.train.live import LiveCorpus
from eagle_edge.train.params import EvaluationParams, HeadParams, TrainParams
from eagle_edge.train.plots import read_metrics
from eagle_edge.train.recipes import RECIPES
from eagle_edge.train.record import Goal
from eagle_edge.train.run import train
from eagle_edge.train.shards import Corpus, from_bf16

__all__ = ["corpus", "prompts"]


@pytest.mark.parametrize(("answering", "visits"), [(4000.0, 2.0), (1000.0, 3.0), (100.0, 4.0)])
def test_a_plan_fills_the_budget(answering: float, visits: float, tmp_path: Path) -> None:
    """Its parts add up to what is left, its tokens follow from its times, and slow answers are visited more often."""
    clock = Clock(tmp_path, 1800.0, time.monotonic())
    clock.spent.seconds, clock.spent.answer_seconds, clock.spent.training_speed = 100.0, 50.0, 1000.0
    found = plan(clock, int(50 * answering))
    assert found.answer_seconds + found.training_seconds + found.finish_seconds == pytest.approx(1700.0)
    assert found.answer_tokens == pytest.approx(answering * (50 + found.answer_seconds), rel=1e-3)
    assert found.visits == pytest.approx(visits, rel=1e-3)
    clock.spent.seconds = 1795.0
    assert plan(clock, 50_000).answer_seconds == 0


def test_time_is_counted_over_processes(tmp_path: Path) -> None:
    """A clock goes on from what the one before it saved; a broken file counts as nothing."""
    clock = Clock(tmp_path, 60.0, time.monotonic() - 7)
    clock.tick(answering=True)
    again = Clock(tmp_path, 60.0, time.monotonic() - 5)
    again.tick()
    assert again.spent.seconds == pytest.approx(12, abs=1)
    assert again.spent.answer_seconds == pytest.approx(7, abs=1)
    assert again.left == pytest.approx(48, abs=1)
    (tmp_path / "clock.json").write_text("{")
    assert Clock(tmp_path, 0.0, time.monotonic()).spent.seconds == 0


@pytest.mark.native
def test_a_budget_decides_how_much_is_done(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """With nearly nothing left there is one round of answers, a plan, a few steps and a whole result."""

    class Listening(Silent):
        def stage(self, name: str, done: float, text: str) -> None:
            heard[name] = text

    heard: dict[str, str] = {}
    params = tiny_run(tiny_target, tmp_path / "run", prompts)
    data = dataclasses.replace(params.data, answer_tokens=10**9)
    params = dataclasses.replace(params, data=data, budget_seconds=30.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "clock.json").write_text(json.dumps({"seconds": 25.0}), encoding="utf-8")
    path = train(params, Listening())
    result = read_result(tmp_path / "run")
    assert path.exists()
    assert len(finished_shards(tmp_path / "run" / "shards")) == 1
    assert result["steps"] == 10
    assert result["seconds"] > 25
    assert "of 30 s:" in heard["plan"]
    assert "visits a token" in heard["plan"]
    with pytest.raises(ValueError, match="budget_seconds"):
        dataclasses.replace(params, budget_seconds=5.0)


def test_training_stops_when_nothing_gets_better(corpus: Corpus, tmp_path: Path) -> None:
    """At a rate that ruins the head, training ends after the patience and the weights are those of the best step."""
    params = dataclasses.replace(LOOP, epochs=50, learning_rate=3.0, warmup_steps=1, evaluate_steps=2, patience=3)
    trainer = make_trainer(corpus, tmp_path / "run", params)
    trainer.run(lambda report: None)
    assert trainer.exhausted
    assert trainer.best.step < trainer.step < 50 * trainer.steps_per_epoch()
    assert trainer.evaluate(params.n_watched).chain_tau() == trainer.best.tau
    assert make_trainer(corpus, tmp_path / "run", params).exhausted
    assert not make_trainer(corpus, tmp_path / "run", dataclasses.replace(params, learning_rate=1e-3)).exhausted
    assert trainer.best.tau == max(
        1 + float(np.cumprod(line["first"]).sum()) for line in read_metrics(trainer.folder) if "first" in line
    )


HEADS = [HeadParams(n_draft_vocab=64, taps=(2, 3, 5)), RECIPES["eagle1"].head]


@pytest.mark.native
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_features_read_again_are_the_stored_ones(
    head: HeadParams, tiny_target: Path, tmp_path: Path, prompts: Path
) -> None:
    """With --online the same answers are stored without features, and training sees the same features and ends well."""
    stored, online = (
        dataclasses.replace(tiny_run(tiny_target, tmp_path / name, prompts), head=head) for name in ("stored", "online")
    )
    train(stored, Silent())
    train(dataclasses.replace(online, online=True), Silent())
    shards = [finished_shards(tmp_path / name / "shards") for name in ("stored", "online")]
    before, bare = Corpus(shards[0]), Corpus(shards[1])
    assert (before.tap_width, bare.tap_width) == (64 * len(head.taps), 0)
    live = LiveCorpus(shards[1], tiny_target, head.taps, 128)
    for index, passage in enumerate(live.passages(range(len(live)))):
        np.testing.assert_array_equal(passage.tokens, before[index].tokens)
        np.testing.assert_allclose(from_bf16(passage.taps), from_bf16(before[index].taps), rtol=2e-2, atol=1e-2)
    assert "again for every batch" in (tmp_path / "online" / "MODEL_CARD.md").read_text(encoding="utf-8")
    with pytest.raises(EagleEdgeError, match="go on with --online"):
        train(dataclasses.replace(online, online=False), Silent())


@pytest.mark.native
def test_a_disk_too_small_for_the_features_is_refused(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """The sizes are named, and what needs less."""
    params = tiny_run(tiny_target, tmp_path / "run", prompts)
    params = dataclasses.replace(params, data=dataclasses.replace(params.data, answer_tokens=10**12))
    with pytest.raises(EagleEdgeError, match=r"need about .* GB, .* GB are free; --online"):
        train(params, Silent())


@pytest.mark.native
def test_a_full_disk_loses_nothing(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """One line while files cannot grow; afterwards the same run ends as if nothing had been."""
    params = tiny_run(tiny_target, tmp_path / "run", prompts)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (10_000, 200_000):  # in the first shard; in the first checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(EagleEdgeError, match=r"cannot be written \(.*goes on"):
                train(params, Silent())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert train(params, Silent()).exists()


@pytest.mark.native
def test_taps_the_target_lacks_are_refused_before_it_answers(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """The boundary is named, with those there are, and no run is begun."""
    params = tiny_run(tiny_target, tmp_path / "run", prompts)
    params = dataclasses.replace(params, head=dataclasses.replace(params.head, taps=(2, 3, 99)))
    with pytest.raises(PairError, match="no boundary 99 to read; they are 0 to 6"):
        train(params, Silent())
    assert not (tmp_path / "run").exists()


def test_no_share_is_claimed_before_there_is_a_plan(tmp_path: Path) -> None:
    """Under a budget nobody knows how many answers there will be until speeds are measured."""
    params = TrainParams("a.gguf", str(tmp_path), budget_seconds=60)
    goal = Goal(params, Clock(tmp_path, 60.0, 0.0), lambda: 1.0, lambda plan: None)
    assert goal.share(1000) == 0.0
    goal.plan = Plan(2000, 2.0, 1.0, 1.0, 1.0)
    assert goal.share(1000) == 0.5


def test_a_target_that_cannot_be_drafted_for_is_one_line(tmp_path: Path, prompts: Path) -> None:
    """A recurrent model has no attention to build a head after."""
    target = make_recurrent(tmp_path / "mamba.gguf")
    with pytest.raises(EagleEdgeError, match=r"mamba\.gguf"):
        train(tiny_run(target, tmp_path / "run", prompts), Silent())


@pytest.mark.native
def test_the_engine_measures_chains_trees_and_questions(tiny_target: Path, tiny_head: Path, tmp_path: Path) -> None:
    """Every way sees the same prompts, tau follows from the counts, and no time left still measures one prompt."""
    (tmp_path / "short.jsonl").write_text('{"prompt": "say it"}\n{"prompt": "again"}\n', encoding="utf-8")
    (tmp_path / "other.jsonl").write_text('{"turns": ["what is it"]}\n', encoding="utf-8")
    with Examiner(tiny_target, {"a": tiny_head, "b": tiny_head}, n_ctx=160) as examiner:
        ways = [(name, shape) for name in "ab" for shape in SHAPES]
        found = examiner.run([[1, 5, 9], [1, 40, 41, 42]], ways, 8, 60.0)
        assert {tally.prompts for tally in found.values()} == {2}
        assert found["a", "tree"] == found["b", "tree"]
        for tally in found.values():
            assert tally.tau == (tally.accepted_n + tally.rounds) / tally.rounds
            assert tally.accepted_n == sum(tally.accepted)
        assert examiner.run([[1, 5, 9], [1, 40]], ways, 8, 0.0)["a", "chain"].prompts == 1
        asked = examiner.questions("a", EvaluationParams(questions=str(tmp_path), question_tokens=8), 60.0)
        assert {name: row["tree"].prompts for name, row in asked.items()} == {"short": 2, "other": 1}
