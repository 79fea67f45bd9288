"""Taps read again by the target for every batch, instead of stored: slower, and almost no disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..config import TargetParams
from ..target import Target
from .shards import Corpus, Passage, to_bf16

__all__ = ["LiveCorpus", "open_reader", "read_again"]


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
        self._target = open_reader(target, taps, n_ctx)

    def passages(self, indices: Iterable[int]) -> list[Passage]:
        """Several passages, with their taps."""
        return [read_again(self._target, self[index]) for index in indices]


def open_reader(target: Path, taps: tuple[int, ...], n_ctx: int) -> Target:
    """The target, opened to read passages again."""
    reader = Target(target, TargetParams(n_ctx=n_ctx))
    reader.set_taps(taps)
    return reader


def read_again(target: Target, passage: Passage) -> Passage:
    """``passage`` with the taps that ``target`` has after its tokens, cut to what the target can hold."""
    n = min(len(passage), target.n_ctx)
    cut = Passage(*(getattr(passage, field.name)[:n] for field in dataclasses.fields(passage)))
    target.rewind(0)
    rows = []
    for start in range(0, n, target.n_prefill):
        ids = cut.tokens[start : min(start + target.n_prefill, n)]
        rows.append(to_bf16(target.prefill(ids).taps(range(len(ids)))))
    return dataclasses.replace(cut, taps=np.concatenate(rows))
