"""From passages to padded tensors: which rows are drafted from, and what each step should say there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .loss import LossRows
from .shards import Corpus, Passage
from .unroll import Batch
from .vocabulary import Vocabulary

__all__ = ["Labels", "epoch_batches", "load_batch", "with_noise"]


@dataclass(frozen=True, slots=True)
class Labels:
    """The target's next-token distribution after every position, restricted to the draft vocabulary.

    Attributes:
        ids: [B, L, C] int64 draft ids, best first.
        probabilities: [B, L, C] float32, 0 for tokens outside the draft vocabulary, summing to 1 otherwise.
        best: [B, L] int64 draft id of the target's choice, -1 outside the vocabulary.
        counts: [B, L] bool: the position is an answer token, so what follows it is to be learnt.
        states: [B, L, H] the target's states that a head of EAGLE-1 learns to imitate; None leaves them out.
    """

    ids: Tensor
    probabilities: Tensor
    best: Tensor
    counts: Tensor
    states: Tensor | None = None

    def at(self, positions: Tensor, in_range: Tensor) -> tuple[LossRows, Tensor]:
        """The flat rows of ``positions`` [B, M] that have a loss (N of them), and where they are in [B*M].

        A position has one when it counts and is ``in_range`` [B, M]. A row whose best token is outside the vocabulary
        has weight 0: it shows in acceptance, not in the loss.
        """
        positions = positions.clamp(max=self.best.shape[1] - 1)
        chosen = (self.counts.gather(1, positions) & in_range).flatten().nonzero()[:, 0]
        best = self.best.gather(1, positions).flatten()[chosen]
        sequence = torch.arange(len(positions), device=positions.device)[:, None].expand_as(positions).flatten()[chosen]
        place = positions.flatten()[chosen]
        weight = (best >= 0).float()
        states = None if self.states is None else self.states[sequence, place]
        return LossRows(self.ids[sequence, place], self.probabilities[sequence, place], weight, best, states), chosen


def epoch_batches(corpus: Corpus, n_sequences: int, seed: int, epoch: int, among: np.ndarray) -> Iterator[list[int]]:
    """The passages ``among`` once each in random order, batched with others of similar length to save padding."""
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(among)
    pool = 24 * n_sequences
    batches: list[list[int]] = []
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(corpus.lengths[part], kind="stable")]
        batches += [[int(i) for i in part[at : at + n_sequences]] for at in range(0, len(part), n_sequences)]
    for index in rng.permutation(len(batches)):
        yield batches[index]


def load_batch(
    passages: list[Passage], vocabulary: Vocabulary, hard_share: float, n_ctx: int, device: torch.device
) -> tuple[Batch, Tensor, Labels]:
    """Padded tensors of ``passages`` (cut to ``n_ctx`` tokens), which of the rows are real [B, M], and the labels.

    ``hard_share`` of each label is put on the target's own choice, the rest stays its distribution.
    """
    B, L = len(passages), min(max(len(passage) for passage in passages), n_ctx)
    C, width = passages[0].likely_ids.shape[1], passages[0].taps.shape[1]
    tokens, counts = np.zeros((B, L), np.int64), np.zeros((B, L), np.bool_)
    taps = np.zeros((B, L, width), np.uint16)
    likely, logprobs = np.zeros((B, L, C), np.int32), np.full((B, L, C), -np.inf, np.float32)
    for row, passage in enumerate(passages):
        n = min(len(passage), L)
        tokens[row, :n], counts[row, :n] = passage.tokens[:n], passage.answer[:n]
        taps[row, :n] = passage.taps[:n]
        likely[row, :n], logprobs[row, :n] = passage.likely_ids[:n], passage.likely_logprobs[:n]

    rows, real = _answer_rows(counts)
    labels = _labels(torch.from_numpy(likely), torch.from_numpy(logprobs), vocabulary, hard_share)
    batch = Batch(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(taps.view(np.int16)).view(torch.bfloat16).to(device),
        torch.from_numpy(rows).to(device),
    )
    ids, probabilities, best = (label.to(device) for label in labels)
    return (
        batch,
        torch.from_numpy(real).to(device),
        Labels(ids, probabilities, best, torch.from_numpy(counts).to(device)),
    )


def _answer_rows(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[B, M] positions t whose next token is an answer token, padded with 0, and which of them are real."""
    found = [np.flatnonzero(row[1:]) for row in counts]
    width = max(1, max(len(rows) for rows in found))
    out, real = np.zeros((len(counts), width), np.int64), np.zeros((len(counts), width), np.bool_)
    for index, rows in enumerate(found):
        out[index, : len(rows)], real[index, : len(rows)] = rows, True
    return out, real


def _labels(
    likely: Tensor, logprobs: Tensor, vocabulary: Vocabulary, hard_share: float
) -> tuple[Tensor, Tensor, Tensor]:
    draft = torch.from_numpy(vocabulary.draft_ids())[likely.long()]  # [B, L, C]
    best = draft[..., 0].clone()
    soft = logprobs.exp().masked_fill(draft < 0, 0)
    soft = soft / soft.sum(-1, keepdim=True).clamp(min=1e-9) * (1 - hard_share)
    soft[..., 0] += hard_share * (best >= 0)
    return draft.clamp(min=0), soft, best


def with_noise(batch: Batch, size: float, generator: torch.Generator) -> Batch:
    """Uniform noise on the features, so that the head learns to live with its own errors.

    As EAGLE-1's trainer adds it: ``size`` wide at 512 tokens, wider for shorter sequences.
    """
    noise = torch.rand(batch.taps.shape, generator=generator).to(batch.taps.device) - 0.5
    width = size * 512 / batch.tokens.shape[1]
    return dataclasses.replace(batch, taps=(batch.taps + noise * width).to(batch.taps.dtype))
