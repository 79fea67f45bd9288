"""Soft cross-entropy through the output matrix, without ever holding all logits; and EAGLE-1's regression on states.

The target's distribution is given sparsely (its most likely tokens), so the loss of a row is
``logsumexp(z) - sum_k p_k z_k``. Loss and gradients are computed chunk by chunk in the forward pass: the float32 logits
of one chunk stay in the processor's cache and are gone before the next. With ``Draws`` a row is drafted as the engine
does: target and head get the same noise, and the label is the token that the target then draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .model import precise

__all__ = ["Draws", "LossRows", "gumbel_pool", "ranks", "soft_cross_entropy", "unrolled_loss"]

CHUNK_LOGITS = 1 << 21
# Gradients of logits are held for so many of them (64 MB of bfloat16), so that large products replace many small ones.
HELD_GRADIENTS = 1 << 25


@dataclass(frozen=True, slots=True)
class LossRows:
    """What a row should predict, in draft ids.

    Attributes:
        ids: [N, C] int64 likely tokens, best first; unused places repeat any id with probability 0.
        probabilities: [N, C] float32.
        weight: [N] float32: 0 takes a row out.
        best: [N] int64 the target's own choice as a draft id, -1 where the draft vocabulary lacks it.
        states: [N, H] the target's states that the rows imitate; None where no loss asks for them.
    """

    ids: Tensor
    probabilities: Tensor
    weight: Tensor
    best: Tensor
    states: Tensor | None = None

    def part(self, rows: slice) -> LossRows:
        """These ``rows``, without states."""
        return LossRows(self.ids[rows], self.probabilities[rows], self.weight[rows], self.best[rows])


def gumbel_pool(matrix: Tensor, seed: int) -> Tensor:
    """Gumbel noise for ``Draws``, float32 in one dimension: twice what the logits of ``matrix`` [R, H] need at once.

    Drawn once for a run: drawing it takes a tenth of a step's time.
    """
    n_logits = _chunk_rows(matrix) * len(matrix)
    pool = torch.empty(2 * n_logits).exponential_(generator=torch.Generator().manual_seed(seed))
    return pool.clamp_(min=1e-10).log_().neg_().to(matrix.device)


@dataclass(frozen=True, slots=True)
class Draws:
    """Rows as they are drafted at temperature 0 or 1: logits with noise, and as the label what the target draws by it.

    The largest of logits plus Gumbel noise is a draw from their softmax; a head that adds the same noise proposes the
    target's draw most often if it is trained to (``same_noise.py`` drafts so).

    Attributes:
        pool: of ``gumbel_pool``; any stretch of it serves.
        hard_share: of the rows so many get no noise: their label is the target's choice.
        generator: picks stretches and rows.
    """

    pool: Tensor
    hard_share: float
    generator: torch.Generator

    def __call__(self, logits: Tensor, rows: LossRows) -> tuple[Tensor, LossRows]:
        """``logits`` [N, R] with noise, and ``rows`` with one token each: what the target draws by the same noise."""
        start = int(torch.randint(len(self.pool) - logits.numel() + 1, (), generator=self.generator))
        hot = torch.rand(len(logits), 1, generator=self.generator) >= self.hard_share
        noise = self.pool[start : start + logits.numel()].view_as(logits) * hot.to(logits.device)
        drawn = (rows.probabilities.log() + noise.gather(1, rows.ids)).argmax(1, keepdim=True)
        ids = rows.ids.gather(1, drawn)
        return logits + noise, replace(rows, ids=ids, probabilities=torch.ones_like(ids, dtype=logits.dtype))


def unrolled_loss(
    steps: Sequence[tuple[Tensor, LossRows]],
    matrix: Tensor,
    decay: float,
    token_weight: float,
    state_weight: float,
    draws: Draws | None = None,
) -> Tensor:
    """The mean over steps of each step's mean loss, step j weighted by ``decay**j``.

    Cross-entropy of tokens, and SmoothL1 of states where rows have them: EAGLE-1 weighs them 0.1 and 1
    (https://arxiv.org/abs/2401.15077, section 3.2), EAGLE-3 has no loss on states. The rows of all steps go through the
    output matrix together, so that it is read, and its gradient written, once. ``draws`` as for ``soft_cross_entropy``.
    """
    shares = [decay**step for step in range(len(steps))]
    shares = [share / sum(shares) for share in shares]
    hidden = torch.cat([hidden for hidden, _ in steps])
    weights = [
        rows.weight * (share / rows.weight.sum().clamp(min=1)) for (_, rows), share in zip(steps, shares, strict=True)
    ]
    together = LossRows(
        torch.cat([rows.ids for _, rows in steps]),
        torch.cat([rows.probabilities for _, rows in steps]),
        torch.cat(weights),
        torch.cat([rows.best for _, rows in steps]),
    )
    loss = token_weight * soft_cross_entropy(hidden, matrix, together, draws)
    for (drafted, rows), share in zip(steps, shares, strict=True):
        if rows.states is not None:
            drafted = precise(drafted)
            total = nn.functional.smooth_l1_loss(drafted, rows.states.to(drafted.dtype), reduction="sum")
            loss = loss + share * state_weight * total / max(1, drafted.numel())
    return loss


def soft_cross_entropy(hidden: Tensor, matrix: Tensor, rows: LossRows, draws: Draws | None = None) -> Tensor:
    """The weighted sum of the rows' losses: a scalar with gradients to ``hidden`` [N, H] and ``matrix`` [R, H].

    A frozen matrix gets none, which saves a third of the work. ``draws`` puts what the target draws in the place of its
    distribution.
    """
    loss: Tensor = _ChunkedLoss.apply(hidden, matrix, rows, draws)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, matrix: Tensor, rows: LossRows, draws: Draws | None) -> Tensor:
        dtype = hidden.dtype  # bfloat16 after an autocast forward; the matrix follows
        source, weights = hidden.detach(), matrix.detach().to(dtype)
        grad_hidden, grad_matrix = torch.empty_like(source), None
        total = torch.zeros((), dtype=torch.promote_types(dtype, torch.float32), device=hidden.device)
        for start in range(0, len(source), held := max(32, HELD_GRADIENTS // len(matrix))):
            block = source[start : start + held]
            gradients = torch.empty((len(block), len(matrix)), dtype=dtype, device=hidden.device)
            for first in range(0, len(block), at_once := _chunk_rows(matrix)):
                logits = (block[first : first + at_once] @ weights.T).to(total.dtype)
                chunk = rows.part(slice(start + first, start + first + len(logits)))
                if draws is not None:
                    logits, chunk = draws(logits, chunk)
                loss, gradient = _chunk_loss(logits, chunk)
                total += loss
                gradients[first : first + len(logits)] = gradient
            grad_hidden[start : start + held] = gradients @ weights
            if ctx.needs_input_grad[1]:
                product = (gradients.T @ block).to(matrix.dtype)
                grad_matrix = product if grad_matrix is None else grad_matrix.add_(product)
        ctx.save_for_backward(grad_hidden, grad_matrix)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        grad_hidden, grad_matrix = ctx.saved_tensors
        # In place: both were made for this, and new ones of this size cost more than the product.
        return grad_hidden.mul_(grads[0]), None if grad_matrix is None else grad_matrix.mul_(grads[0]), None, None


def _chunk_rows(matrix: Tensor) -> int:
    """Rows whose logits are held at once, fewer for large vocabularies."""
    return max(32, CHUNK_LOGITS // len(matrix))


def _chunk_loss(logits: Tensor, rows: LossRows) -> tuple[Tensor, Tensor]:
    """The weighted loss of a chunk and its gradient with respect to ``logits``."""
    probabilities = rows.probabilities * rows.weight[:, None]
    mass = probabilities.sum(1, keepdim=True)
    gradient = logits.softmax(1)
    # log p = z - logsumexp(z) at the top token, whose p is never 0: logsumexp without another pass of exponentials.
    top, index = logits.max(1, keepdim=True)
    normaliser = top - gradient.gather(1, index).log()
    loss = (normaliser * mass).sum() - (logits.gather(1, rows.ids) * probabilities).sum()
    gradient.mul_(mass).scatter_add_(1, rows.ids, -probabilities)
    return loss, gradient


def ranks(hidden: Tensor, matrix: Tensor, best: Tensor) -> Tensor:
    """[N] how many candidates the draft puts before ``best`` [N]; R where the draft vocabulary lacks it (-1).

    0 is what a chain accepts, less than k what a tree of k children per node accepts.
    """
    out = torch.empty_like(best)
    rows_at_once = _chunk_rows(matrix)
    for start in range(0, len(best), rows_at_once):
        part = slice(start, start + rows_at_once)
        logits = (hidden[part] @ matrix.T).float()
        value = logits.gather(1, best[part].clamp(min=0)[:, None])
        out[part] = torch.where(best[part] >= 0, (logits > value).sum(1), len(matrix))
    return out
