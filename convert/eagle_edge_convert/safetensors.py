"""Reads a .safetensors file: eight bytes of length, a JSON header, then the data.

The format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from eagle_edge.errors import FileFormatError

__all__ = ["DTYPES", "Entry", "open_file"]

MAX_HEADER_BYTES = 100_000_000
# Name in the file -> our name and the numpy type that holds its bits.
DTYPES = {
    "F64": ("float64", np.float64),
    "F32": ("float32", np.float32),
    "F16": ("float16", np.float16),
    "BF16": ("bfloat16", np.uint16),
    "I64": ("int64", np.int64),
    "I32": ("int32", np.int32),
    "I16": ("int16", np.int16),
    "I8": ("int8", np.int8),
    "U8": ("uint8", np.uint8),
    "BOOL": ("bool", np.uint8),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], npt.NDArray[Any]]


def open_file(path: Path) -> dict[str, Entry]:
    """Name to entry of every tensor in ``path``.

    Raises:
        FileFormatError: the file is truncated or its header is impossible.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if size < 8 or n_header > min(size - 8, MAX_HEADER_BYTES):
            raise FileFormatError(f"{path}: not a safetensors file, or truncated; get it again")
        try:
            header = json.loads(file.read(n_header))
            header.pop("__metadata__", None)
            return {name: _entry(path, name, value, 8 + n_header, size) for name, value in header.items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise FileFormatError(f"{path}: its header is corrupt ({error}); get it again") from None


def _entry(path: Path, name: str, value: Any, base: int, size: int) -> Entry:
    def fail(message: str) -> NoReturn:
        raise FileFormatError(f"{path}: tensor {name!r} {message}")

    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        fail("has no dtype, shape or data_offsets: the header is corrupt")
    if value["dtype"] not in DTYPES:
        fail(f"has the type {value['dtype']}, which is not known here; known are {', '.join(DTYPES)}")
    dtype, bits = DTYPES[value["dtype"]]
    shape, (start, end) = tuple(int(n) for n in value["shape"]), value["data_offsets"]
    if min(shape, default=0) < 0 or end - start != math.prod(shape) * np.dtype(bits).itemsize:
        fail(f"has shape {list(shape)} but {end - start} bytes: the header is corrupt")
    if start < 0 or base + end > size:
        fail("ends beyond the file, which is truncated; get it again")
    return Entry(
        shape, dtype, lambda: np.memmap(path, bits, "r", base + start, shape) if end > start else np.zeros(shape, bits)
    )
