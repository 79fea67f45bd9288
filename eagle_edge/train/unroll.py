"""Training-time test: several draft steps chained on their own features, without a mask that grows with the steps.

Step 0 reads the target's features; step j reads what step j-1 put out, with teacher-forced tokens. A query of step j at
row t sees the whole causal block of step 0 up to t, and of every step 1..j only row t itself: one extra score column
each (the diagonals), instead of a mask over (j+1)*T keys. That is what the runtime sees: true features behind, its own
outputs in front. EAGLE-3, https://arxiv.org/abs/2503.01840, section 3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .model import Head, precise

__all__ = ["Batch", "unroll"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded sequences and the rows to draft from.

    Attributes:
        tokens: [B, L] int64.
        taps: [B, L, K*E] states of the target after reading each token.
        rows: [B, M] int64 positions t whose pair (taps of t, token t+1) is unrolled; padding repeats any position.
    """

    tokens: Tensor
    taps: Tensor
    rows: Tensor


def unroll(
    head: Head, batch: Batch, n_steps: int, keep: float = 1.0, generator: torch.Generator | None = None
) -> list[tuple[Tensor, Tensor]]:
    """For each step j, the columns [M'] of ``rows`` it carried and [B, M', H], the inputs of ``head.output`` there.

    The output of step j at row t predicts the token at t + 2 + j. Only the rows go through the layer; every other
    position gives its keys and values once. Rows do not see each other after step 0, so each step may carry on a random
    share of the rows of the step before: the same expected gradient, for less work.

    Args:
        head: the head.
        batch: the sequences.
        n_steps: how many steps, at least 1.
        keep: the share of rows that the next step carries on, in (0, 1].
        generator: draws them.
    """
    attention = head.midlayer.self_attn
    n_pairs = batch.tokens.shape[1] - 1
    rows = batch.rows
    positions = torch.arange(n_pairs, device=rows.device)[None]
    x, residual = head.pair(batch.tokens[:, 1:], head.feature(batch.taps[:, :-1]))
    block = attention.key_value(x, head.angles(positions))
    visible = positions[:, None] <= rows[..., None]  # [B, M, T]
    x, residual = _take(x, rows), _take(residual, rows)

    columns = torch.arange(rows.shape[1], device=rows.device)
    feedback = residual  # step 0 has read the target's feature already
    diagonals: list[tuple[Tensor, Tensor]] = []
    outputs = []
    for step in range(n_steps):
        if step > 0:
            if keep < 1:
                kept = _draw(len(columns), keep, generator).to(rows.device)
                columns, rows, visible, feedback = columns[kept], rows[:, kept], visible[:, kept], feedback[:, kept]
                diagonals = [(key[:, :, kept], value[:, :, kept]) for key, value in diagonals]
            tokens = batch.tokens.gather(1, (rows + 1 + step).clamp(max=n_pairs))
            x, residual = head.pair(tokens, feedback)
            diagonals.append(attention.key_value(x, head.angles(rows + step)))
        query = attention.query(x, head.angles(rows + step))
        feedback, normed = head.finish(residual, attend(query, block, visible, diagonals))
        outputs.append((columns, normed))
    return outputs


def _draw(n: int, share: float, generator: torch.Generator | None) -> Tensor:
    """A random ``share`` of 0..n-1, ascending, at least one."""
    return torch.randperm(n, generator=generator)[: math.ceil(share * n)].sort().values


def attend(
    query: Tensor,
    block: tuple[Tensor, Tensor],
    visible: Tensor,
    diagonals: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """Grouped-query attention over a block of keys and a few keys of the query's own row.

    Args:
        query: [B, n_head, M, D].
        block: keys and values [B, n_head_kv, T, D], seen where ``visible`` [B, M, T].
        visible: [B, M, T] bool.
        diagonals: keys and values [B, n_head_kv, M, D] of earlier steps; row m sees row m of each.

    Returns:
        [B, M, n_head*D].
    """
    B, n_head, M, D = query.shape
    keys, values = block
    n_head_kv, T = keys.shape[1:3]
    grouped = query.reshape(B, n_head_kv, n_head // n_head_kv, M, D) * D**-0.5
    scores = precise(grouped.flatten(2, 3) @ keys.transpose(-1, -2)).reshape(*grouped.shape[:4], T)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    own = [precise((grouped * key[:, :, None]).sum(-1, keepdim=True)) for key, _ in diagonals]
    weights = torch.cat([scores, *own], dim=-1).softmax(-1).to(values.dtype)
    out = (weights[..., :T].flatten(2, 3) @ values).reshape(grouped.shape)
    for step, (_, value) in enumerate(diagonals):
        out = out + weights[..., T + step, None] * value[:, :, None]
    return out.reshape(query.shape).transpose(1, 2).flatten(2)


def _take(x: Tensor, rows: Tensor) -> Tensor:
    """[B, T, W] -> [B, M, W] at ``rows``."""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))
