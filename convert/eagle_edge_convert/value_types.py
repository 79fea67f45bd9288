"""The types of a GGUF file's values, which the engine's reader has no use for and a copy must keep."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from gguf import GGUFValueType as Type

__all__ = ["read_value_types"]

_SIZES = {Type.UINT8: 1, Type.INT8: 1, Type.UINT16: 2, Type.INT16: 2, Type.UINT32: 4, Type.INT32: 4}
_SIZES |= {Type.FLOAT32: 4, Type.BOOL: 1, Type.UINT64: 8, Type.INT64: 8, Type.FLOAT64: 8}


def read_value_types(path: Path) -> dict[str, tuple[Type, Type | None]]:
    """Key to its type, and to its elements' type where it is an array, of a file that ``read_header`` has passed."""
    out: dict[str, tuple[Type, Type | None]] = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (n_values,) = struct.unpack_from("<Q", data, 16)
        at = 24
        for _ in range(n_values):
            start, at = at + 8, _skip_strings(data, at, 1)
            key, kind = (
                data[start:at].decode("utf-8", "surrogateescape"),
                Type(int.from_bytes(data[at : at + 4], "little")),
            )
            at += 4
            if kind is not Type.ARRAY:
                out[key], at = (kind, None), _skip(data, at, kind, 1)
                continue
            element, count = struct.unpack_from("<IQ", data, at)
            out[key], at = (kind, Type(element)), _skip(data, at + 12, Type(element), count)
    return out


def _skip(data: mmap.mmap, at: int, kind: Type, count: int) -> int:
    return _skip_strings(data, at, count) if kind is Type.STRING else at + count * _SIZES[kind]


def _skip_strings(data: mmap.mmap, at: int, count: int) -> int:
    for _ in range(count):
        at += 8 + int.from_bytes(data[at : at + 8], "little")
    return at
