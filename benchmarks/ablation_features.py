"""The states that heads are trained on, recorded again for text that is there already."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from eagle_edge.config import TargetParams
from eagle_edge.gguf_header import read_header
from eagle_edge.target import Target
from eagle_edge.train.shards import Passage, to_bf16

__all__ = ["Features", "dequantise", "rerecord"]


class Features:
    """Passages of one text with different states.

    Args:
        target: the model that wrote the text.
        folder: for the dequantised copy of it.
        n_threads: of evaluations.
    """

    def __init__(self, target: Path, folder: Path, n_threads: int) -> None:
        self.target, self.folder, self.n_threads = target, folder, n_threads

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
        return rerecord(source, taps, passages, self.n_threads)


def rerecord(target: Path, taps: tuple[int, ...], passages: Sequence[Passage], n_threads: int) -> list[Passage]:
    """``passages`` with the states of ``target`` at ``taps`` after the same tokens; the labels stay."""
    out = []
    longest = max(map(len, passages))
    params = TargetParams(n_ctx=longest + 8, n_batch=512, max_nodes=254, n_threads=n_threads)
    with Target(target, params) as model:
        model.set_taps(taps)
        for passage in passages:
            model.rewind(0)
            parts = []
            for start in range(0, len(passage), model.n_prefill):
                ids = passage.tokens[start : start + model.n_prefill]
                parts.append(to_bf16(model.prefill(ids).taps(range(len(ids)))))
            out.append(dataclasses.replace(passage, taps=np.concatenate(parts)))
    return out


def dequantise(source: Path, output: Path) -> None:
    """Write the weights of ``source`` as float16: the same numbers, less their rounding to 11 bits."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.allow_requantize, params.ftype = True, llama_cpp.LLAMA_FTYPE_MOSTLY_F16
    partial = output.with_suffix(".partial")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(params)) != 0:
        raise OSError(f"{source}: llama.cpp cannot write it as float16")
    partial.replace(output)
