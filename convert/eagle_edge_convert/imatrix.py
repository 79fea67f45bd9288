"""Reads an importance matrix, as llama.cpp's ``llama-imatrix`` writes it: GGUF, or the older plain binary.

The GGUF form holds ``NAME.in_sum2`` and ``NAME.counts``, the sums of squared activations and how many there were; the
older one, for each name, a call count and the values times that count.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

__all__ = ["read_imatrix"]

Float32 = npt.NDArray[np.float32]


def read_imatrix(path: Path) -> dict[str, Float32]:
    """Tensor name to its importances.

    Raises:
        ValueError: the file is neither form, or not finite.
    """
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    try:
        values = _from_gguf(path) if is_gguf else _from_binary(path.read_bytes())
    except (struct.error, KeyError, IndexError, UnicodeDecodeError):
        raise ValueError("not an importance matrix, or truncated") from None
    if not values or not all(np.isfinite(numbers).all() for numbers in values.values()):
        raise ValueError("it is empty, or holds values that are not finite")
    return values


def _from_gguf(path: Path) -> dict[str, Float32]:
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(str(path)).tensors}
    out = {}
    for name in [name for name in tensors if name.endswith(".in_sum2")]:
        counts = np.asarray(tensors[name.removesuffix(".in_sum2") + ".counts"], np.float32).reshape(-1, 1)
        sums = np.asarray(tensors[name], np.float32).reshape(len(counts), -1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)
        out[name.removesuffix(".in_sum2")] = np.ascontiguousarray(means.ravel(), np.float32)
    return out


def _from_binary(data: bytes) -> dict[str, Float32]:
    (n_entries,), at, out = struct.unpack_from("<i", data), 4, {}
    for _ in range(n_entries):
        (n_name,) = struct.unpack_from("<i", data, at)
        name = data[at + 4 : at + 4 + n_name].decode()
        n_calls, n_values = struct.unpack_from("<ii", data, at + 4 + n_name)
        at += 12 + n_name
        numbers = np.array(struct.unpack_from(f"<{n_values}f", data, at), np.float32)
        at += 4 * n_values
        out[name] = numbers / n_calls if n_calls > 0 else np.ones_like(numbers)
    return out
