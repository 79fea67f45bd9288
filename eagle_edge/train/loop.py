"""The optimisation: AdamW under a cosine schedule, with checkpoints that continue exactly where a run stopped."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import EagleEdgeError
from .batches import epoch_batches, load_batch, with_noise
from .loss import Draws, LossRows, gumbel_pool, ranks, unrolled_loss
from .model import Head
from .params import LoopParams
from .saving import load_state, save_state, unfit
from .shards import Corpus
from .unroll import unroll
from .vocabulary import Vocabulary
from .watching import EVALUATED_STEPS, TREE_WIDTH, Acceptance, Best, Report

__all__ = ["Trainer"]

# With an allotted time: at least so many steps, evaluations and checkpoints at this share of it or in this time.
MIN_STEPS = 10
EVALUATION_SHARE = 0.06
CHECKPOINT_SECONDS = 60.0


class Trainer:
    """Optimises ``head`` on ``corpus``, keeping its state in ``folder``.

    Args:
        head: the head, on its device; its weights are replaced when ``folder`` holds a checkpoint.
        corpus: the passages.
        vocabulary: the draft vocabulary the head was built for.
        params: how.
        seed: of the order of passages and the choice of rows.
        folder: where checkpoint.pt, best.pt and metrics.jsonl live.

    Attributes:
        allotted: seconds for ``run``, this process and those before together; 0 goes by epochs.
        best: the best acceptance on the watched passages as a chain's tau, the step it was reached at, and how many
            evaluations have not bettered it since.

    Raises:
        EagleEdgeError: too few passages, or the checkpoint there is of another run.
    """

    def __init__(
        self, head: Head, corpus: Corpus, vocabulary: Vocabulary, params: LoopParams, seed: int, folder: Path
    ) -> None:
        self.head, self.corpus, self.vocabulary, self.params = head, corpus, vocabulary, params
        self.seed, self.folder = seed, folder
        self.device = head.output.device
        numbers = np.arange(len(corpus))
        held_out = numbers % params.held_out == 0
        self.held_out, self.training = numbers[held_out], numbers[~held_out]
        if len(self.training) == 0:
            raise EagleEdgeError(f"{len(corpus)} passages are too few to train on; at least 2 are needed")
        fused = self.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(
            head.parameters(), lr=params.learning_rate, betas=(0.9, 0.95), weight_decay=params.weight_decay, fused=fused
        )
        self.step = self.tokens = 0
        self.seconds = self.allotted = 0.0
        self.best = Best()
        self._schedule = f"{len(corpus)} passages, {params}"
        self._load()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        """The file that holds the state of the run."""
        return self.folder / "checkpoint.pt"

    def _load(self) -> None:
        if not self.checkpoint.exists():
            return
        state = load_state(self.checkpoint, self.device)
        try:
            self.head.load_state_dict(state["head"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise unfit(self.checkpoint, error) from None
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.best = Best(*state.get("best", ()))
        if state.get("schedule") != self._schedule:  # other data or settings get their own patience
            self.best = dataclasses.replace(self.best, stale=0)

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        state = {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}
        counts = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        best = {"best": dataclasses.astuple(self.best), "schedule": self._schedule}
        save_state({**state, **counts, **best}, self.checkpoint)

    # -- optimisation --------------------------------------------------------------------------------------------------

    def run(self, on_report: Callable[[Report], None], probe: Callable[[], Mapping[str, float]] = dict) -> None:
        """Train until the epochs, the time or the patience are used up; the head then has its best weights.

        Args:
            on_report: hears of the progress.
            probe: further figures for the metrics, asked for after each evaluation.
        """
        losses: list[float] = []
        began = time.monotonic() - self.seconds
        saved, evaluated, acceptance = time.monotonic(), self.done(), None
        for indices in self._batches():
            if self.done() >= 1 or self.exhausted:
                break
            losses.append(self._optimise(indices))
            self.step += 1
            self.seconds = time.monotonic() - began
            acceptance = None
            if self._evaluation_is_due(evaluated):
                acceptance, evaluated = self._judge(), self.done()
            if self.step % self.params.checkpoint_steps == 0 or time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
            if acceptance is not None or self.step % self.params.report_steps == 0:
                on_report(self._report(losses, acceptance, probe() if acceptance is not None else {}))
                losses = []
        if acceptance is None:
            acceptance = self._judge()
        self.save()
        on_report(self._report(losses, acceptance, {}))
        if self.best.step != self.step:
            self.head.load_state_dict(load_state(self.folder / "best.pt", self.device))

    def speed(self, n_steps: int) -> float:
        """Answer tokens a second over ``n_steps`` real steps after a first one; the head is none the better for it."""
        batches = self._batches()
        self._optimise(next(batches))
        before, started = self.tokens, time.monotonic()
        for _ in range(n_steps):
            self._optimise(next(batches))
        return (self.tokens - before) / (time.monotonic() - started)

    @property
    def exhausted(self) -> bool:
        """Whether evaluations have brought nothing better for as long as the patience goes."""
        return 0 < self.params.patience <= self.best.stale

    def _evaluation_is_due(self, evaluated: float) -> bool:
        if self.allotted > 0:
            return self.done() - evaluated >= EVALUATION_SHARE
        return self.step % self.params.evaluate_steps == 0

    def _judge(self) -> Acceptance:
        """The acceptance on the watched passages; the weights are kept when it is the best so far."""
        acceptance = self.evaluate(self.params.n_watched)
        tau = acceptance.chain_tau()
        if tau > self.best.tau:
            self.best = Best(tau, self.step, 0)
            save_state(self.head.state_dict(), self.folder / "best.pt")
        elif self.step != self.best.step:
            self.best = Best(self.best.tau, self.best.step, self.best.stale + 1)
        return acceptance

    def steps_per_epoch(self) -> int:
        """Batches in one pass over the training passages."""
        return math.ceil(len(self.training) / self.params.n_sequences)

    def done(self) -> float:
        """The share of the run that is behind, 0..1."""
        if self.allotted > 0:
            return min(1.0 if self.step >= MIN_STEPS else 0.99, self.seconds / self.allotted)
        return min(1.0, self.step / (self.params.epochs * self.steps_per_epoch()))

    def learning_rate(self) -> float:
        """The rate of the next step: linear warm-up over its steps or a tenth of the run, then a cosine down to 0."""
        params = self.params
        warm = min(1.0, max((self.step + 1) / max(1, params.warmup_steps), 10 * self.done()))
        return params.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * self.done()))

    def _batches(self) -> Iterator[list[int]]:
        """Batches from the current step on, without end."""
        epoch, skipped = divmod(self.step, self.steps_per_epoch())
        while True:
            batches = list(epoch_batches(self.corpus, self.params.n_sequences, self.seed, epoch, self.training))
            yield from batches[skipped:]
            epoch, skipped = epoch + 1, 0

    def _optimise(self, indices: list[int]) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
        params = self.params
        steps = self._forward(indices, params.n_steps, params.keep_rows, generator)
        weights = params.step_decay, params.token_loss, params.state_loss
        draws = Draws(self._noise, params.hard_share, generator) if params.same_noise else None
        loss = unrolled_loss(steps, self.head.output, *weights, draws)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), params.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.tokens += sum(int(self.corpus[index].answer.sum()) for index in indices)
        return float(loss.detach())

    @functools.cached_property
    def _noise(self) -> Tensor:
        return gumbel_pool(self.head.output, self.seed)

    def _forward(
        self, indices: list[int], n_steps: int, keep: float, generator: torch.Generator | None
    ) -> list[tuple[Tensor, LossRows]]:
        """For each step, the inputs of ``head.output`` that have a label [N, H], and their rows.

        Only training gives a ``generator``, which draws the rows carried on and the noise.
        """
        params = self.params
        passages = self.corpus.passages(indices)
        on_choice = 0.0 if params.same_noise else params.hard_share
        batch, real, labels = load_batch(passages, self.vocabulary, on_choice, params.n_ctx, self.device)
        length = batch.tokens.shape[1]
        if params.state_loss > 0:
            labels = dataclasses.replace(labels, states=batch.taps)
        if params.noise > 0 and generator is not None:
            batch = with_noise(batch, params.noise, generator)
        out = []
        with torch.autocast(self.device.type, torch.bfloat16):
            steps = unroll(self.head, batch, n_steps, keep, generator)
        for step, (columns, hidden) in enumerate(steps):
            positions = batch.rows[:, columns] + 1 + step
            rows, chosen = labels.at(positions, real[:, columns] & (positions < length))
            out.append((hidden.flatten(0, 1)[chosen], rows))
        return out

    # -- watching ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, most: int | None = None) -> Acceptance:
        """The acceptance on the held-out passages, or on the first ``most``."""
        found = np.zeros((EVALUATED_STEPS, 3))
        size, held_out = self.params.n_sequences, self.held_out[:most]
        matrix = self.head.output.to(torch.bfloat16)
        for start in range(0, len(held_out), size):
            indices = [int(i) for i in held_out[start : start + size]]
            for step, (hidden, rows) in enumerate(self._forward(indices, EVALUATED_STEPS, 1.0, None)):
                rank = ranks(hidden.to(matrix.dtype), matrix, rows.best)
                found[step] += [int((rank == 0).sum()), int((rank < TREE_WIDTH).sum()), len(rank)]
        seen = np.maximum(found[:, 2], 1)
        return Acceptance(tuple((found[:, 0] / seen).tolist()), tuple((found[:, 1] / seen).tolist()))

    def _report(self, losses: list[float], acceptance: Acceptance | None, more: Mapping[str, float]) -> Report:
        loss = float(np.mean(losses)) if losses else float("nan")
        report = Report(self.step, self.tokens, self.seconds, loss, self.done(), acceptance)
        if losses or acceptance is not None:
            line: dict[str, Any] = {"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1)}
            if losses:
                line["loss"] = loss
            if acceptance is not None:
                line |= {"first": acceptance.first, "among": acceptance.among, **more}
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return report
