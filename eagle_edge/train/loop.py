"""The optimisation: AdamW under a cosine schedule, with checkpoints that continue exactly where a run stopped."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import EagleEdgeError
from .batches import epoch_batches, load_batch
from .loss import LossRows, ranks, step_loss
from .model import Head
from .params import LoopParams
from .shards import Corpus
from .unroll import Batch, unroll
from .vocabulary import Vocabulary

__all__ = ["Acceptance", "Report", "Trainer"]

EVALUATED_STEPS = 6
TREE_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Acceptance:
    """On held-out passages with teacher-forced tokens, by depth: how often the target's choice is proposed.

    Attributes:
        first: [steps] as the first candidate, which is what a chain accepts.
        among: [steps] among the first ``TREE_WIDTH`` candidates.
    """

    first: tuple[float, ...]
    among: tuple[float, ...]

    def chain_tau(self) -> float:
        """Tokens per target evaluation of a chain as deep as was measured, if depths were independent."""
        return 1.0 + float(np.cumprod(self.first).sum())


@dataclass(frozen=True, slots=True)
class Report:
    """One line of progress: ``acceptance`` is None between evaluations, ``done`` is the share of the run."""

    step: int
    tokens: int
    seconds: float
    loss: float
    done: float
    acceptance: Acceptance | None


class Trainer:
    """Optimises ``head`` on ``corpus``, keeping its state in ``folder``.

    Args:
        head: the head, on its device; its weights are replaced when ``folder`` holds a checkpoint.
        corpus: the passages.
        vocabulary: the draft vocabulary the head was built for.
        params: how.
        seed: of the order of passages and the choice of rows.
        folder: where checkpoint.pt and metrics.jsonl live.

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
        self.seconds = 0.0
        self._load()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        """The file that holds the state of the run."""
        return self.folder / "checkpoint.pt"

    def _load(self) -> None:
        if not self.checkpoint.exists():
            return
        try:
            state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True, map_location=self.device)
            self.head.load_state_dict(state["head"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, KeyError, ValueError, OSError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).splitlines()[0]
            raise EagleEdgeError(
                f"{self.checkpoint}: not a checkpoint of this run ({reason}); delete it to start anew"
            ) from None
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        partial = self.checkpoint.with_suffix(".pt.partial")
        state = {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}
        with partial.open("wb") as file:
            torch.save({**state, "step": self.step, "tokens": self.tokens, "seconds": self.seconds}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.checkpoint)

    # -- optimisation --------------------------------------------------------------------------------------------------

    def run(self, on_report: Callable[[Report], None]) -> None:
        """Train until the epochs or the budget are used up; interrupting it loses at most ``checkpoint_steps``."""
        params = self.params
        losses: list[float] = []
        for indices in self._batches():
            if self.done() >= 1:
                break
            started = time.monotonic()
            losses.append(self._optimise(indices))
            self.step += 1
            self.seconds += time.monotonic() - started
            if self.step % params.checkpoint_steps == 0:
                self.save()
            if self.step % params.report_steps == 0:
                evaluate = self.step % params.evaluate_steps == 0
                on_report(self._report(losses, self.evaluate() if evaluate else None))
                losses = []
        self.save()
        on_report(self._report(losses, self.evaluate()))

    def steps_per_epoch(self) -> int:
        """Batches in one pass over the training passages."""
        return math.ceil(len(self.training) / self.params.n_sequences)

    def done(self) -> float:
        """The share of the run that is behind, 0..1."""
        if self.params.budget_seconds > 0:
            return min(1.0, self.seconds / self.params.budget_seconds)
        return min(1.0, self.step / (self.params.epochs * self.steps_per_epoch()))

    def learning_rate(self) -> float:
        """The rate of the next step: linear warm-up, then a cosine down to 0."""
        params = self.params
        warm = min(1.0, (self.step + 1) / max(1, params.warmup_steps))
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
        params, total = self.params, 0.0
        loss = torch.zeros((), device=self.device)
        for step, (hidden, rows) in enumerate(self._forward(indices, params.n_steps, params.keep_rows, generator)):
            mean = step_loss(hidden, self.head.output, rows, params.token_loss, params.state_loss)
            weight = params.step_decay**step
            loss, total = loss + weight * mean, total + weight
        torch.autograd.backward(loss / total)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), params.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.tokens += sum(int(self.corpus[index].answer.sum()) for index in indices)
        return float(loss.detach() / total)

    def _forward(
        self, indices: list[int], n_steps: int, keep: float, generator: torch.Generator | None
    ) -> list[tuple[Tensor, LossRows]]:
        """For each step, the inputs of ``head.output`` that have a label [N, H], and their rows.

        Only training gives a ``generator``, which draws the rows carried on and the noise.
        """
        params = self.params
        passages = [self.corpus[index] for index in indices]
        batch, real, labels = load_batch(passages, self.vocabulary, params.hard_share, params.n_ctx, self.device)
        length = batch.tokens.shape[1]
        if params.state_loss > 0:
            labels = dataclasses.replace(labels, states=batch.taps)
        if params.noise > 0 and generator is not None:
            batch = _with_noise(batch, params.noise, generator)
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
    def evaluate(self) -> Acceptance:
        """The acceptance on the held-out passages."""
        found = np.zeros((EVALUATED_STEPS, 3))
        size = self.params.n_sequences
        matrix = self.head.output.to(torch.bfloat16)
        for start in range(0, len(self.held_out), size):
            indices = [int(i) for i in self.held_out[start : start + size]]
            for step, (hidden, rows) in enumerate(self._forward(indices, EVALUATED_STEPS, 1.0, None)):
                rank = ranks(hidden.to(matrix.dtype), matrix, rows.best)
                found[step] += [int((rank == 0).sum()), int((rank < TREE_WIDTH).sum()), len(rank)]
        seen = np.maximum(found[:, 2], 1)
        return Acceptance(tuple((found[:, 0] / seen).tolist()), tuple((found[:, 1] / seen).tolist()))

    def _report(self, losses: list[float], acceptance: Acceptance | None) -> Report:
        loss = float(np.mean(losses)) if losses else float("nan")
        report = Report(self.step, self.tokens, self.seconds, loss, self.done(), acceptance)
        if losses or acceptance is not None:
            line: dict[str, Any] = {"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1)}
            if losses:
                line["loss"] = loss
            if acceptance is not None:
                line |= {"first": acceptance.first, "among": acceptance.among}
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return report


def _with_noise(batch: Batch, size: float, generator: torch.Generator) -> Batch:
    """Uniform noise on the features, so that the head learns to live with its own errors.

    As EAGLE-1's trainer adds it: ``size`` wide at 512 tokens, wider for shorter sequences.
    """
    noise = torch.rand(batch.taps.shape, generator=generator).to(batch.taps.device) - 0.5
    width = size * 512 / batch.tokens.shape[1]
    return dataclasses.replace(batch, taps=(batch.taps + noise * width).to(batch.taps.dtype))
