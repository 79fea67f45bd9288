"""One command from a GGUF to a head: prompts, answers with features, vocabulary, training, export, evaluation, card.

Every stage leaves its result in the run's folder and is skipped or continued when it is there, so that the same command
takes up a run that was interrupted anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ..errors import EagleEdgeError, PairError
from ..head_format import HeadConfig
from ..questions import load_questions
from .answers import finished_shards
from .budget import Clock, Plan, duration
from .finish import FILES, Probe, finish, is_finished
from .live import LiveCorpus
from .loop import Trainer
from .model import Head
from .params import TrainParams
from .record import Goal, record
from .shards import Corpus, from_bf16
from .start import initialise, tap_sizes
from .target_weights import TargetWeights, read_target_weights
from .vocabulary import Vocabulary, choose
from .warm_start import WarmStart, read_start
from .watching import Report

__all__ = ["Progress", "train"]

# Steps that training speed is measured on: enough to tell, and a few seconds.
MEASURED_STEPS = 3


class Progress(Protocol):
    """Hears how far a run is."""

    def stage(self, name: str, done: float, text: str) -> None:
        """``done`` (0..1) of the stage ``name`` is behind; ``text`` says more."""

    def report(self, report: Report) -> None:
        """The training loop has something to show."""


def train(params: TrainParams, progress: Progress, started: float | None = None) -> Path:
    """Run or continue the run in ``params.output`` and return the head's GGUF; figures are in its figures.json.

    Args:
        params: what to do.
        progress: is told how far it is.
        started: ``time.monotonic()`` from when on the budget counts; now by default.

    Raises:
        FileFormatError: the target, the head to start from, or a prompt file cannot be read.
        PairError: no head can be trained for this target, or not from that head.
        EagleEdgeError: the folder holds another run, the disk is too small, or there is too little data.
    """
    started = time.monotonic() if started is None else started
    if params.evaluation.questions:
        load_questions(
            Path(params.evaluation.questions), params.evaluation.sets
        )  # a wrong name shows now, not at the end
    weights = read_target_weights(Path(params.target))
    _check_taps(params, weights)
    folder = Path(params.output)
    folder.mkdir(parents=True, exist_ok=True)
    start = read_start(Path(params.start_from), Path(params.target), folder) if params.start_from else None
    if start is not None and start.config.kind == "eagle1" and params.start_vocab:
        raise PairError(f"{params.start_from}: an EAGLE-1 head proposes every token; leave out --draft-vocab")
    params = _claim(params, folder)
    if is_finished(folder, params):
        return folder / FILES["q8_0"]
    torch.set_num_threads(params.loop.n_threads or os.cpu_count() or 1)
    try:
        return _Run(params, folder, weights, start, progress, Clock(folder, params.budget_seconds, started)).run()
    except OSError as error:
        reason = error.strerror or str(error)
        raise EagleEdgeError(f"{folder}: cannot be written ({reason}); the same command goes on from there") from None


def _check_taps(params: TrainParams, weights: TargetWeights) -> None:
    """Refuse boundaries that the target lacks before it has answered anything."""
    for tap in params.head.taps:
        if not -1 <= tap <= weights.n_layer:
            raise PairError(
                f"{params.target}: has no boundary {tap} to read; they are 0 to {weights.n_layer}, or -1 past the norm"
            )


class _Run:
    """The stages, and what they share."""

    def __init__(
        self,
        params: TrainParams,
        folder: Path,
        weights: TargetWeights,
        start: WarmStart | None,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self.params, self.folder, self.weights, self.start = params, folder, weights, start
        self.progress, self.clock = progress, clock
        middle = (2, weights.n_layer // 2, weights.n_layer - 3)
        self.taps = start.config.taps if start else params.head.taps or middle

    def run(self) -> Path:
        """All stages in turn."""
        goal = Goal(self.params, self.clock, self._training_speed, self._show)
        record(self.params, self.taps, self.weights, self.folder, goal, self._stage)
        corpus = self._corpus()
        self.start = self._narrowed(corpus)
        vocabulary = self._vocabulary(corpus)
        covered = f"{len(vocabulary.ids)} tokens cover {vocabulary.coverage:.1%} of the answers"
        self._stage("vocabulary", 1.0, covered)
        trainer = Trainer(
            self._head(self.start, vocabulary, corpus).to(_device()),
            corpus,
            vocabulary,
            self.params.loop,
            self.params.seed,
            self.folder,
        )
        self._allot(trainer)
        trainer.run(self._report, Probe(self.params, self.folder, trainer))
        return finish(self.params, self.folder, trainer, self.clock, self._stage)

    # -- time and progress ---------------------------------------------------------------------------------------------

    def _stage(self, name: str, done: float, text: str) -> None:
        self.clock.tick()
        self.progress.stage(name, done, text)

    def _report(self, report: Report) -> None:
        self.clock.tick()
        self.progress.report(report)

    def _show(self, plan: Plan) -> None:
        self._stage("plan", 1.0, f"of {duration(self.clock.budget)}: {plan.line()}")

    def _allot(self, trainer: Trainer) -> None:
        """Give training what is left of the budget, less what comes after it."""
        self.clock.tick()
        if self.clock.budget > 0:
            trainer.allotted = max(1e-3, trainer.seconds + self.clock.left - self.clock.finish_seconds)

    def _training_speed(self) -> float:
        """Answer tokens a second that training gets through, tried on the answers so far."""
        self._stage("plan", 0.0, "measuring the speed of training")
        corpus = self._corpus()
        start = self._narrowed(corpus)
        counts = corpus.counts(self.weights.n_vocab)
        ids = start.ids if start else choose(counts, self._n_draft_vocab()).ids
        vocabulary = Vocabulary(ids, self.weights.n_vocab, 0.0)
        head = self._head(start, vocabulary, corpus).to(_device())
        with tempfile.TemporaryDirectory() as scratch:
            trainer = Trainer(head, corpus, vocabulary, self.params.loop, self.params.seed, Path(scratch))
            return trainer.speed(MEASURED_STEPS)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _corpus(self) -> Corpus:
        shards = finished_shards(self.folder / "shards")
        corpus = Corpus(shards)
        if not self.params.online and corpus.tap_width:
            return corpus
        if not self.params.online:
            raise EagleEdgeError(f"{self.folder}: its answers were stored without features; go on with --online")
        return LiveCorpus(shards, Path(self.params.target), self.taps, self.params.loop.n_ctx)

    def _narrowed(self, corpus: Corpus) -> WarmStart | None:
        """The head to go on from, with as many tokens as are wanted."""
        if self.start is None or self.params.start_vocab == 0:
            return self.start
        return self.start.narrowed(corpus.counts(self.weights.n_vocab), self.params.start_vocab)

    def _vocabulary(self, corpus: Corpus) -> Vocabulary:
        """The draft vocabulary: that of the head to go on from, or chosen once."""
        n_vocab, path = self.weights.n_vocab, self.folder / "vocabulary.json"
        if self.start is not None:
            return Vocabulary(self.start.ids, n_vocab, 0.0).covering(corpus.counts(n_vocab))
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            return Vocabulary(np.array(stored["ids"], np.int64), n_vocab, stored["coverage"])
        out = choose(corpus.counts(n_vocab), self._n_draft_vocab())
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"coverage": out.coverage, "ids": out.ids.tolist()}), encoding="utf-8")
        os.replace(partial, path)
        return out

    def _n_draft_vocab(self) -> int:
        """R; 0 in the settings stands for every token."""
        return min(self.params.head.n_draft_vocab or self.weights.n_vocab, self.weights.n_vocab)

    def _head(self, start: WarmStart | None, vocabulary: Vocabulary, corpus: Corpus) -> Head:
        """The head before its first step: the one to go on from, or a new one."""
        if start is not None:
            head = Head(start.config, self.weights.embedding, self.weights.output)
            head.load_state_dict(start.weights)
            return head
        config = head_config(self.params, self.taps, self.weights, len(vocabulary.ids))
        head = Head(config, self.weights.embedding, self.weights.output)
        sample = np.concatenate([from_bf16(passage.taps) for passage in corpus.passages(range(min(16, len(corpus))))])
        initialise(head, vocabulary, self.weights, tap_sizes(sample, len(self.taps)), self.params.seed)
        return head


def head_config(params: TrainParams, taps: tuple[int, ...], target: TargetWeights, n_draft_vocab: int) -> HeadConfig:
    """The head that ``params`` describe for ``target``."""
    chosen = params.head
    return HeadConfig(
        kind=chosen.kind,
        taps=taps,
        n_embd=target.n_embd,
        n_embd_target=target.n_embd,
        n_ff=chosen.n_ff or target.n_ff,
        n_head=chosen.n_head or target.n_head,
        n_head_kv=chosen.n_head_kv or target.n_head_kv,
        head_dim=target.head_dim,
        n_vocab=target.n_vocab,
        n_draft_vocab=n_draft_vocab,
        n_ctx=2048,
        rms_eps=target.rms_eps,
        rope_theta=target.rope_theta,
        norm_before_residual=chosen.norm_before_residual,
        norm_before_fc=chosen.norm_before_fc,
        fc_norm=chosen.fc_norm,
        norm_output=chosen.norm_output,
    )


def _claim(params: TrainParams, folder: Path) -> TrainParams:
    """Mark the folder as this run's and give its settings; refuse a run with other data or another head.

    More answers, more time and another schedule continue a run. Its rounds keep their size, which their contents follow
    from.
    """
    path = folder / "params.json"
    if path.exists():
        before = TrainParams.load(path)
        data = dataclasses.replace(params.data, prompts_per_round=before.data.prompts_per_round)
        params = dataclasses.replace(params, data=data)
        data = dataclasses.replace(before.data, answer_tokens=data.answer_tokens)
        free = {name: getattr(params, name) for name in ("output", "loop", "budget_seconds", "online", "evaluation")}
        expected = dataclasses.replace(before, data=data, **free)
        names = [f.name for f in dataclasses.fields(params) if getattr(params, f.name) != getattr(expected, f.name)]
        if names:
            raise EagleEdgeError(
                f"{folder}: holds a run with another {', '.join(names)}; name another folder or delete it"
            )
    partial = path.with_suffix(".partial")
    params.save(partial)
    os.replace(partial, path)
    return params


def _device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
