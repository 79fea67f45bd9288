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

__all__ = ["DTYPES", "Entry", "mapped", "open_file"]

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 8
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
    """Name to entry of every tensor in ``path``; their data is mapped, not read.

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
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise FileFormatError(f"{path}: its header is corrupt ({reason}); get it again") from None


def _entry(path: Path, name: str, value: Any, base: int, size: int) -> Entry:
    def fail(message: str) -> NoReturn:
        raise FileFormatError(f"{path}: tensor {name!r} {message}")

    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        fail("has no dtype, shape or data_offsets: the header is corrupt")
    if not isinstance(value["dtype"], str) or value["dtype"] not in DTYPES:
        fail(f"has the type {value['dtype']!r}, which is not known here; known are {', '.join(DTYPES)}")
    shape, offsets = value["shape"], value["data_offsets"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2 or len(shape) > MAX_DIMENSIONS:
        fail("has an impossible shape or place: the header is corrupt")
    dtype, bits = DTYPES[value["dtype"]]
    start, end = offsets
    if end - start != math.prod(shape) * np.dtype(bits).itemsize:
        fail(f"has shape {shape} but {end - start} bytes: the header is corrupt")
    if base + end > size:
        fail("ends beyond the file, which is truncated; get it again")
    where = tuple(shape)
    return Entry(where, dtype, lambda: mapped(path, bits, base + start, where))


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def mapped(path: Path, bits: Any, offset: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The numbers at ``offset`` of a file, brought into memory as they are looked at."""
    if math.prod(shape) == 0:
        return np.zeros(shape, bits)
    return np.memmap(path, bits, "r", offset, shape)
