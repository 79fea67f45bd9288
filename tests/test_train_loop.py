"""What is learnt, and that an interrupted run ends where an uninterrupted one does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from tiny import HEAD, N_VOCAB

from eagle_edge.errors import EagleEdgeError, FileFormatError
from eagle_edge.train.batches import epoch_batches, load_batch
from eagle_edge.train.loop import Trainer
from eagle_edge.train.model import Head
from eagle_edge.train.params import DataParams, LoopParams, TrainParams
from eagle_edge.train.plots import read_metrics, write_plots
from eagle_edge.train.shards import Corpus, Passage, from_bf16, to_bf16, write_shard
from eagle_edge.train.vocabulary import Vocabulary, choose
from eagle_edge.train.watching import Report

LOOP = LoopParams(
    n_steps=3,
    epochs=2,
    n_sequences=4,
    held_out=5,
    report_steps=1,
    evaluate_steps=4,
    checkpoint_steps=2,
    warmup_steps=2,
    n_threads=1,
)


def make_passage(rng: np.random.Generator, length: int = 20, n_prompt: int = 6) -> Passage:
    """A text in which each token follows from the one before, so that something can be learnt."""
    tokens = (np.arange(length) * 7 + rng.integers(40)) % 40
    likely = np.stack([(tokens + 7) % 40, (tokens + 8) % 40, np.full(length, 300)], axis=1)
    return Passage(
        tokens.astype(np.int32),
        np.arange(length) >= n_prompt,
        to_bf16(rng.standard_normal((length, 3 * HEAD.n_embd_target), np.float32)),
        likely.astype(np.int32),
        np.log(np.tile([0.7, 0.2, 0.1], (length, 1))).astype(np.float16),
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    rng = np.random.default_rng(0)
    for shard in range(2):
        write_shard(tmp_path / "shards" / f"{shard:05d}", [make_passage(rng, 14 + i) for i in range(10)])
    return Corpus(sorted((tmp_path / "shards").iterdir()))


VOCABULARY = Vocabulary(np.arange(128, dtype=np.int64), N_VOCAB, 1.0)


def make_trainer(corpus: Corpus, folder: Path, params: LoopParams = LOOP) -> Trainer:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    head = Head(dataclasses.replace(HEAD, norm_before_residual=True), torch.randn(N_VOCAB, HEAD.n_embd))
    return Trainer(head, corpus, VOCABULARY, params, 1, folder)


class StopHere(Exception):  # noqa: N818
    """Ends a run in the middle, as a kill would."""


def stop_at(step: int) -> Callable[[Report], None]:
    def on_report(report: Report) -> None:
        if report.step == step:
            raise StopHere

    return on_report


@pytest.mark.parametrize("stopped", [3, 5, 8])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(stopped: int, corpus: Corpus, tmp_path: Path) -> None:
    """Weights, optimiser steps and counts are the same to the last bit, wherever the run was cut."""
    whole = make_trainer(corpus, tmp_path / "whole")
    whole.run(lambda report: None)
    with pytest.raises(StopHere):
        make_trainer(corpus, tmp_path / "cut").run(stop_at(stopped))
    resumed = make_trainer(corpus, tmp_path / "cut")
    assert resumed.step == stopped - stopped % 2  # the last checkpoint
    resumed.run(lambda report: None)
    assert (resumed.step, resumed.tokens) == (whole.step, whole.tokens) == (8, whole.tokens)
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(tensor, resumed.head.state_dict()[name]), name


def test_the_loss_falls_and_the_acceptance_rises(corpus: Corpus, tmp_path: Path) -> None:
    """On text in which the next token follows from the last, a few steps teach most of it, at every depth."""
    params = dataclasses.replace(
        LOOP, epochs=40, learning_rate=1e-2, warmup_steps=5, evaluate_steps=1000, checkpoint_steps=1000
    )
    trainer = make_trainer(corpus, tmp_path / "run", params)
    before = trainer.evaluate()
    trainer.run(lambda report: None)
    after = trainer.evaluate()
    assert max(before.first) < 0.2
    assert min(after.first) > 0.8
    assert all(first <= among for first, among in zip(after.first, after.among, strict=True))
    losses = [line["loss"] for line in read_metrics(trainer.folder) if "loss" in line]
    assert losses[-1] < losses[0] / 2
    assert [path.name for path in write_plots(trainer.folder)] == ["loss.png", "acceptance.png", "tau.png"]


@pytest.mark.parametrize(("hard_share", "least", "most"), [(0.0, 0.8, 2.0), (1.0, 3.0, 99.0)])
def test_draws_teach_how_sure_the_target_is(
    hard_share: float, least: float, most: float, corpus: Corpus, tmp_path: Path
) -> None:
    """The target's choice is 1.25 (log 0.7 / 0.2) above the next token; only draws tell, its choices alone do not."""
    seldom = dataclasses.replace(LOOP, evaluate_steps=1000, checkpoint_steps=1000)
    params = dataclasses.replace(seldom, epochs=25, learning_rate=1e-2, same_noise=True, hard_share=hard_share)
    trainer = make_trainer(corpus, tmp_path / "run", params)
    trainer.run(lambda report: None)
    with torch.no_grad():
        hidden, rows = trainer._forward([int(i) for i in trainer.held_out], 1, 1.0, None)[0]
        likely = (hidden.float() @ trainer.head.output.T).gather(1, rows.ids)
    assert least < float((likely[:, 0] - likely[:, 1]).median()) < most


def test_only_answer_tokens_are_learnt() -> None:
    """Rows start at the last prompt token, whose successor is the first answer token; nothing before has a label."""
    passage = make_passage(np.random.default_rng(1), length=12, n_prompt=6)
    batch, real, labels = load_batch([passage], VOCABULARY, 0.0, 64, torch.device("cpu"))
    assert batch.rows.tolist() == [[5, 6, 7, 8, 9, 10]]
    assert bool(real.all())
    for step, expected in [(0, [6, 7, 8, 9, 10, 11]), (1, [7, 8, 9, 10, 11])]:
        positions = batch.rows + 1 + step
        rows, chosen = labels.at(positions, positions < 12)
        assert positions.flatten()[chosen].tolist() == expected
        assert rows.best.tolist() == [(int(passage.tokens[p]) + 7) % 40 for p in expected]


def test_a_second_turn_of_the_user_is_not_learnt() -> None:
    """No step predicts tokens of a prompt, also when an unrolled row runs into one."""
    passage = make_passage(np.random.default_rng(1), length=12, n_prompt=4)
    passage.answer[7:9] = False
    batch, real, labels = load_batch([passage], VOCABULARY, 0.0, 64, torch.device("cpu"))
    for step in range(3):
        positions = batch.rows + 1 + step
        _, chosen = labels.at(positions, real & (positions < 12))
        assert not {7, 8} & set(positions.flatten()[chosen].tolist())


@pytest.mark.parametrize(
    ("hard_share", "expected"), [(0.0, [7 / 9, 2 / 9, 0]), (0.5, [8 / 9, 1 / 9, 0]), (1.0, [1, 0, 0])]
)
def test_labels_mix_the_choice_and_the_distribution(hard_share: float, expected: list[float]) -> None:
    """Tokens outside the draft vocabulary get nothing and the rest sums to one."""
    passage = make_passage(np.random.default_rng(1))
    _, _, labels = load_batch([passage], VOCABULARY, hard_share, 64, torch.device("cpu"))
    torch.testing.assert_close(
        labels.probabilities[0, 8], torch.tensor(expected, dtype=torch.float32), atol=1e-3, rtol=0
    )


def test_padding_changes_nothing(corpus: Corpus, tmp_path: Path) -> None:
    """A passage has the same loss alone and beside a longer one."""
    trainer = make_trainer(corpus, tmp_path / "run")
    alone = trainer._forward([0], 3, 1.0, None)
    beside = trainer._forward([0, 9], 3, 1.0, None)
    for (hidden, rows), (both, both_rows) in zip(alone, beside, strict=True):
        torch.testing.assert_close(both[: len(hidden)], hidden, atol=2e-2, rtol=2e-2)  # bfloat16
        assert torch.equal(both_rows.best[: len(hidden)], rows.best)


def test_every_passage_comes_once_an_epoch(corpus: Corpus) -> None:
    """Batches partition the passages; another epoch orders them otherwise."""
    among = np.arange(3, len(corpus))
    first, second = (list(epoch_batches(corpus, 4, 7, epoch, among)) for epoch in (0, 1))
    assert sorted(i for batch in first for i in batch) == among.tolist()
    assert first != second


def test_vocabulary_is_the_most_frequent_tokens() -> None:
    """Ids ascend, coverage is their share, and the map back has -1 for the rest."""
    vocabulary = choose(np.array([5.0, 0, 3, 3, 9]), 3)
    assert vocabulary.ids.tolist() == [0, 2, 4]
    assert vocabulary.coverage == pytest.approx(0.85)
    assert vocabulary.draft_ids().tolist() == [0, -1, 1, -1, 2]
    with pytest.raises(ValueError, match=r"1\.\.5"):
        choose(np.ones(5), 6)
    with pytest.raises(ValueError, match="no answer tokens"):
        choose(np.zeros(5), 2)


def test_bfloat16_bits_round_to_nearest() -> None:
    """The same as torch's conversion, both ways."""
    values = np.random.default_rng(0).standard_normal(1000, np.float32) * 100
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(from_bf16(to_bf16(values)), expected)


def test_a_broken_shard_or_checkpoint_is_one_line(corpus: Corpus, tmp_path: Path) -> None:
    """Each names the file and what to do."""
    (tmp_path / "shards" / "00001" / "taps.npy").write_bytes(b"no")
    with pytest.raises(FileFormatError, match=r"00001.*delete it"):
        Corpus(sorted((tmp_path / "shards").iterdir()))
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint.pt").write_bytes(b"no")
    with pytest.raises(EagleEdgeError, match="delete it to start anew"):
        make_trainer(corpus, run)


def test_settings_survive_the_disk(tmp_path: Path) -> None:
    """What is saved is what is loaded; anything else is refused in one line."""
    params = TrainParams("a.gguf", "run", 3, data=DataParams(prompt_files=("x.txt",), temperatures=(0.5,)))
    params.save(tmp_path / "params.json")
    assert TrainParams.load(tmp_path / "params.json") == params
    values: dict[str, Any] = json.loads((tmp_path / "params.json").read_text())
    values["data"]["surprise"] = 1
    (tmp_path / "params.json").write_text(json.dumps(values))
    with pytest.raises(EagleEdgeError, match="surprise"):
        TrainParams.load(tmp_path / "params.json")


@pytest.mark.parametrize(
    "wrong", [{"n_steps": 0}, {"keep_rows": 0}, {"learning_rate": 0}, {"hard_share": 2}, {"epochs": 0}, {"held_out": 1}]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LoopParams(**wrong)
