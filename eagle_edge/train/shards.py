"""What the target said, thought and would have said: token sequences with taps and likely next tokens, on disk.

A shard is a folder of plain .npy files, written under a temporary name and renamed, so a killed run loses the shard in
hand and nothing else; reading is memory-mapped, so memory stays flat. This module knows neither models nor losses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FileFormatError

__all__ = ["Corpus", "Passage", "bytes_per_token", "from_bf16", "to_bf16", "write_shard"]

Array = npt.NDArray[Any]

_FIELDS = ("tokens", "answer", "taps", "likely_ids", "likely_logprobs")


@dataclass(frozen=True, slots=True)
class Passage:
    """One sequence the target has read; C likely next tokens are kept for each position.

    Attributes:
        tokens: [n] int32.
        answer: [n] bool, True for the tokens of answers.
        taps: [n, K*E] uint16, the bits of bfloat16; [n, 0] where they are read again when wanted.
        likely_ids: [n, C] int32 the likeliest tokens after each position, best first.
        likely_logprobs: [n, C] float16.
    """

    tokens: Array
    answer: Array
    taps: Array
    likely_ids: Array
    likely_logprobs: Array

    def __len__(self) -> int:
        return len(self.tokens)


def bytes_per_token(tap_width: int, n_likely: int) -> int:
    """Bytes that one token takes in a shard."""
    return 4 + 1 + 2 * tap_width + (4 + 2) * n_likely


def write_shard(folder: Path, passages: Sequence[Passage]) -> None:
    """Write ``passages`` as the shard ``folder``, which appears complete or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    lengths = np.array([len(passage) for passage in passages], np.int64)
    np.save(partial / "lengths.npy", lengths)
    for field in _FIELDS:
        np.save(partial / f"{field}.npy", np.concatenate([getattr(passage, field) for passage in passages]))
    for file in partial.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    partial.rename(folder)


class Corpus:
    """The passages of some shards, read from disk when asked for.

    Args:
        folders: shard folders, in order.

    Attributes:
        lengths: [passages] int64 tokens of each passage.

    Raises:
        FileFormatError: a shard is incomplete or its arrays do not fit together.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._shards: list[dict[str, Array]] = []
        self._places: list[tuple[int, int, int]] = []  # shard, first row, end row
        for folder in folders:
            lengths, arrays = _open_shard(folder)
            ends = np.cumsum(lengths)
            self._places += [(len(self._shards), int(end - n), int(end)) for end, n in zip(ends, lengths, strict=True)]
            self._shards.append(arrays)
        self.lengths = np.array([end - start for _, start, end in self._places], np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Passage:
        shard, start, end = self._places[index]
        return Passage(*(self._shards[shard][field][start:end] for field in _FIELDS))

    def passages(self, indices: Iterable[int]) -> list[Passage]:
        """Several passages, with their taps."""
        return [self[index] for index in indices]

    @property
    def tap_width(self) -> int:
        """K*E of the stored taps; 0 where a shard stores none."""
        return min((int(shard["taps"].shape[1]) for shard in self._shards), default=0)

    def n_answer_tokens(self) -> int:
        """Tokens of answers in all passages."""
        return sum(int(shard["answer"].sum()) for shard in self._shards)

    def counts(self, n_vocab: int) -> npt.NDArray[np.float64]:
        """[V] expected counts of answer tokens: the target's likely tokens weighted by their probabilities."""
        out = np.zeros(n_vocab, np.float64)
        for shard in self._shards:
            # Position i predicts i + 1. Rows that end a passage predict a token beyond it, which is as good.
            rows = np.flatnonzero(shard["answer"])
            weights = np.exp(shard["likely_logprobs"][rows].astype(np.float32))
            out += np.bincount(shard["likely_ids"][rows].ravel(), weights.ravel(), minlength=n_vocab)
        return out


def _open_shard(folder: Path) -> tuple[Array, dict[str, Array]]:
    try:
        lengths: Array = np.load(folder / "lengths.npy")
        arrays: dict[str, Array] = {field: np.load(folder / f"{field}.npy", mmap_mode="r") for field in _FIELDS}
    except (OSError, ValueError, EOFError) as error:
        raise FileFormatError(
            f"{folder}: not a whole shard of training data ({error}); delete it to make it again"
        ) from None
    if any(len(array) != lengths.sum() for array in arrays.values()):
        raise FileFormatError(f"{folder}: its arrays differ in length; delete it to make it again")
    return lengths, arrays


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
