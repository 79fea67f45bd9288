"""Quantises a GGUF model with the quantiser of the installed llama.cpp, in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from eagle_edge.errors import FileFormatError

from .encode import Kind, encode_rows
from .reference import run_process
from .write import Progress

__all__ = ["FILE_TYPES", "FLOAT_TYPES", "bits_per_weight", "needs_imatrix", "quantise", "seconds_per_weight"]

# Every type of llama.cpp's quantiser, by the lower-case name users know.
FILE_TYPES: Mapping[str, int] = {
    kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").lower(): int(kind)
    for kind in gguf.LlamaFileType
    if kind.name != "GUESSED"
}
FLOAT_TYPES = ("f32", "f16", "bf16")
_NEED_IMATRIX = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "q2_k_s")


def needs_imatrix(quantize: str) -> bool:
    """Whether llama.cpp refuses this type without an importance matrix."""
    return quantize in _NEED_IMATRIX


def base_kind(quantize: str) -> Kind | None:
    """The ggml type that most of a model of this type is stored in."""
    names = {kind.name.lower(): kind for kind in Kind}
    for name in (quantize, quantize.rsplit("_", 1)[0]):
        if name in names:
            return names[name]
    return None


def bits_per_weight(quantize: str) -> float:
    """About how many bits a weight takes in a model of this type, its finer tensors included."""
    kind = base_kind(quantize)
    if kind is None:
        return 4.5
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return size / block * 8 * (1.0 if quantize in FLOAT_TYPES else 1.06)


def seconds_per_weight(quantize: str, n_threads: int) -> float:
    """How long a weight takes here, from a small sample quantised now."""
    kind, sample = base_kind(quantize), np.ones((64, 2048), np.float32)
    if kind is None or quantize in FLOAT_TYPES:
        return 0.0
    sample += np.linspace(0, 1, sample.size, dtype=np.float32).reshape(sample.shape)
    try:
        encode_rows(sample[:1], kind, "a sample")
        start = time.perf_counter()
        encode_rows(sample, kind, "a sample")
    except AssertionError:
        return 0.0
    return (time.perf_counter() - start) / sample.size / n_threads


def quantise(
    source: Path,
    output: Path,
    quantize: str,
    imatrix: Path | None = None,
    n_threads: int | None = None,
    expected_bytes: int = 0,
    progress: Progress | None = None,
) -> list[str]:
    """Write ``source`` as ``output``; one line for each tensor that could not take the type and what it took instead.

    Raises:
        FileFormatError: llama.cpp refuses; the message is its own.
    """
    job = {
        "source": str(source.resolve()),
        "output": str(output.resolve()),
        "file_type": FILE_TYPES[quantize],
        "imatrix": None if imatrix is None else str(imatrix.resolve()),
        "n_threads": n_threads or os.cpu_count(),
    }

    def told() -> None:
        if progress is not None and output.exists():
            progress(min(output.stat().st_size, expected_bytes), expected_bytes)

    answer = run_process("quantize_process", job, told)
    if "error" in answer:
        raise FileFormatError(f"{source}: {answer['error']}")
    return list(answer["fallbacks"])
