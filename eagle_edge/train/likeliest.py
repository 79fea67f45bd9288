"""The likeliest tokens of many rows of logits at once, in buffers that are used again for every evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..target import Evaluation

__all__ = ["Likeliest"]

Array = npt.NDArray[Any]

# The k largest of a row lie among the k groups with the largest maxima, so most of the row is only looked at once.
GROUP = 64


class Likeliest:
    """Finds tokens in rows of ``n_vocab`` logits, at most ``n_rows`` at once.

    Args:
        n_rows: most rows of one call.
        n_vocab: V.
    """

    def __init__(self, n_rows: int, n_vocab: int) -> None:
        width = -(-n_vocab // GROUP) * GROUP
        self._logits = np.full((n_rows, width), -np.inf, np.float32)
        self._scratch = torch.empty((n_rows, width))
        self.n_vocab = n_vocab

    def find(self, evaluation: Evaluation, rows: Sequence[int], k: int) -> tuple[Array, Array]:
        """[len(rows), k] int32 tokens of the evaluation's ``rows``, best first, and their float32 log-probabilities."""
        n = len(rows)
        for out, row in zip(self._logits, rows, strict=False):
            out[: self.n_vocab] = evaluation.logits(row)
        logits = torch.from_numpy(self._logits[:n])
        grouped = logits.view(n, GROUP, -1)  # group j holds the tokens j, j + width / GROUP, ...
        n_groups = grouped.shape[2]
        groups = grouped.amax(1).topk(min(k, n_groups)).indices
        among = grouped.gather(2, groups[:, None].expand(-1, GROUP, -1)).flatten(1)
        values, places = among.topk(k)
        member, group = places // groups.shape[1], groups.gather(1, places % groups.shape[1])
        best = values[:, :1]
        normaliser = torch.sub(logits, best, out=self._scratch[:n]).exp_().sum(1, keepdim=True).log_() + best
        return (member * n_groups + group).int().numpy(), (values - normaliser).numpy()
