"""Soft cross-entropy through the output matrix, without ever holding all logits; and EAGLE-1's regression on states.

The target's distribution is given sparsely (its most likely tokens), so the loss of a row is
``logsumexp(z) - sum_k p_k z_k``. Loss and gradients are computed chunk by chunk in the forward pass: the logits of one
chunk stay in the processor's cache and are gone before the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .model import precise

__all__ = ["LossRows", "ranks", "soft_cross_entropy", "step_loss"]

CHUNK_LOGITS = 1 << 21


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


def step_loss(hidden: Tensor, matrix: Tensor, rows: LossRows, token_weight: float, state_weight: float) -> Tensor:
    """The mean loss of the rows of one step: cross-entropy of tokens, and SmoothL1 of states where rows have them.

    EAGLE-1 weighs them 0.1 and 1 (https://arxiv.org/abs/2401.15077, section 3.2), EAGLE-3 has no loss on states.
    """
    loss = token_weight * soft_cross_entropy(hidden, matrix, rows) / rows.weight.sum().clamp(min=1)
    if rows.states is None:
        return loss
    drafted = precise(hidden)
    total = nn.functional.smooth_l1_loss(drafted, rows.states.to(drafted.dtype), reduction="sum")
    return loss + state_weight * total / max(1, hidden.numel())


def soft_cross_entropy(hidden: Tensor, matrix: Tensor, rows: LossRows) -> Tensor:
    """The weighted sum of the rows' losses: a scalar with gradients to ``hidden`` [N, H] and ``matrix`` [R, H].

    A frozen matrix gets none, which saves a third of the work.
    """
    loss: Tensor = _ChunkedLoss.apply(hidden, matrix, rows)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, matrix: Tensor, rows: LossRows) -> Tensor:
        dtype = hidden.dtype  # bfloat16 after an autocast forward; the matrix follows
        source, weights = hidden.detach(), matrix.detach().to(dtype)
        grad_hidden = torch.empty_like(source)
        grad_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        rows_at_once = _chunk_rows(matrix)
        total = torch.zeros((), dtype=torch.promote_types(dtype, torch.float32), device=hidden.device)
        for start in range(0, len(source), rows_at_once):
            part = slice(start, start + rows_at_once)
            loss, gradient = _chunk_loss((source[part] @ weights.T).to(total.dtype), rows, part)
            total += loss
            gradient = gradient.to(dtype)
            grad_hidden[part] = gradient @ weights
            if grad_matrix is not None:
                grad_matrix += gradient.T @ source[part]
        ctx.save_for_backward(grad_hidden, grad_matrix)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        grad_hidden, grad_matrix = ctx.saved_tensors
        return grad_hidden * grads[0], None if grad_matrix is None else grad_matrix * grads[0], None


def _chunk_rows(matrix: Tensor) -> int:
    """Rows whose logits are held at once, fewer for large vocabularies."""
    return max(32, CHUNK_LOGITS // len(matrix))


def _chunk_loss(logits: Tensor, rows: LossRows, part: slice) -> tuple[Tensor, Tensor]:
    """The weighted loss of a chunk and its gradient with respect to ``logits``."""
    probabilities = rows.probabilities[part] * rows.weight[part][:, None]
    mass = probabilities.sum(1, keepdim=True)
    gradient = logits.softmax(1)
    # log p = z - logsumexp(z) at the top token, whose p is never 0: logsumexp without another pass of exponentials.
    top, index = logits.max(1, keepdim=True)
    normaliser = top - gradient.gather(1, index).log()
    loss = (normaliser * mass).sum() - (logits.gather(1, rows.ids[part]) * probabilities).sum()
    gradient.mul_(mass).scatter_add_(1, rows.ids[part], -probabilities)
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
