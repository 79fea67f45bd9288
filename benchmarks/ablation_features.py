"""The states that heads are trained on, recorded again for text that is there already."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from eagle_edge.gguf_header import read_header
from eagle_edge.train.live import open_reader, read_again
from eagle_edge.train.shards import Passage

__all__ = ["Features", "dequantise", "rerecord"]


class Features:
    """Passages of one text with different states.

    Args:
        target: the model that wrote the text.
        folder: for the dequantised copy of it.
    """

    def __init__(self, target: Path, folder: Path) -> None:
        self.target, self.folder = target, folder

    @staticmethod
    def boundaries(kind: str, target: Path) -> tuple[int, ...]:
        """The taps of ``kind``: "three", the "last" of them, "final" (after the final norm), or "dequantised"."""
        header = read_header(str(target))
        n_layer = header.get(f"{header.architecture}.block_count", int)
        three = (2, n_layer // 2, n_layer - 3)
        return {"three": three, "last": three[-1:], "final": (-1,), "dequantised": three}[kind]

    def of(self, kind: str, passages: Sequence[Passage]) -> list[Passage]:
        """``passages``, which were recorded with the three default taps, with the states of ``kind``."""
        taps = self.boundaries(kind, self.target)
        if kind == "three":
            return list(passages)
        if kind == "last":
            return [dataclasses.replace(p, taps=p.taps[:, -p.taps.shape[1] // 3 :]) for p in passages]
        source = self.target
        if kind == "dequantised":
            source = self.folder / "dequantised-f16.gguf"
            if not source.exists():
                dequantise(self.target, source)
        return rerecord(source, taps, passages)


def rerecord(target: Path, taps: tuple[int, ...], passages: Sequence[Passage]) -> list[Passage]:
    """``passages`` with the states of ``target`` at ``taps`` after the same tokens; the labels stay."""
    with open_reader(target, taps, max(map(len, passages))) as reader:
        return [read_again(reader, passage) for passage in passages]


def dequantise(source: Path, output: Path) -> None:
    """Write the weights of ``source`` as float16: the same numbers, less their rounding to 11 bits."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.allow_requantize, params.ftype = True, llama_cpp.LLAMA_FTYPE_MOSTLY_F16
    partial = output.with_suffix(".partial")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(params)) != 0:
        raise OSError(f"{source}: llama.cpp cannot write it as float16")
    partial.replace(output)
