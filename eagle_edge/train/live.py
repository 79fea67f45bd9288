"""Taps read again by the target for every batch, instead of stored: slower, and almost no disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..config import TargetParams
from ..target import Target
from .shards import Corpus, Passage, to_bf16

__all__ = ["LiveCorpus"]


class LiveCorpus(Corpus):
    """Passages whose taps the target gives when they are asked for.

    Args:
        folders: shard folders, in order.
        target: the target's GGUF.
        taps: boundaries to read.
        n_ctx: longer passages are cut.
    """

    def __init__(self, folders: Iterable[Path], target: Path, taps: tuple[int, ...], n_ctx: int) -> None:
        super().__init__(folders)
        self._target = Target(target, TargetParams(n_ctx=n_ctx, max_nodes=1))
        self._target.set_taps(taps)

    def passages(self, indices: Iterable[int]) -> list[Passage]:
        """Several passages, with their taps."""
        return [self._read(self[index]) for index in indices]

    def _read(self, passage: Passage) -> Passage:
        target = self._target
        n, size = min(len(passage), target.n_ctx), target.params.n_batch
        cut = Passage(*(getattr(passage, field.name)[:n] for field in dataclasses.fields(passage)))
        target.rewind(0)
        rows = []
        for start in range(0, n, size):
            ids = cut.tokens[start : start + size]
            rows.append(to_bf16(target.prefill(ids).taps(range(len(ids)))))
        return dataclasses.replace(cut, taps=np.concatenate(rows))
