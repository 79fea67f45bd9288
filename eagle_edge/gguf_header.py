"""Strict reader of a GGUF header: names, values and tensor places, never tensor data.

Every count and length is checked against the bytes that are left before anything is read or allocated, so a truncated
or mutated file ends in one FileFormatError and llama.cpp never sees it. It knows the container, not any model.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

from .errors import FileFormatError
from .ggml_types import GGML_TYPES

__all__ = ["GgufHeader", "TensorInfo", "Value", "read_header"]

Scalar: TypeAlias = "int | float | bool | str"
Value: TypeAlias = "Scalar | list[str] | array[int] | array[float]"
Kind = TypeVar("Kind", int, float, bool, str)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``shape`` in ggml's order (fastest first), ``offset`` and ``n_bytes`` of its data in the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int

    @property
    def type_name(self) -> str:
        """The name of the ggml type, for messages."""
        return GGML_TYPES[self.type].name


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about itself.

    Attributes:
        path: the file.
        metadata: key to value; arrays of numbers are ``array.array``, arrays of strings are lists.
        tensors: name to place, in file order.
    """

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]

    def fail(self, message: str) -> NoReturn:
        """Raise a FileFormatError that begins with the file's path."""
        raise FileFormatError(f"{self.path}: {printable(message)}")

    @property
    def architecture(self) -> str:
        """The value of ``general.architecture``."""
        return self.get("general.architecture", str)

    def get(self, key: str, kind: type[Kind], default: Kind | None = None) -> Kind:
        """The value of ``key`` as ``kind``; ``default`` where the key is absent.

        Raises:
            FileFormatError: the key is absent and has no default, or holds another kind.
        """
        value = self.metadata.get(key)
        if value is None:
            if default is None:
                self.fail(f"the key {key} is missing")
            return default
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind:
            self.fail(f"the key {key} should be {kind.__name__}, not {type(value).__name__}")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """The integer array under ``key``.

        Raises:
            FileFormatError: the key is absent or holds something else.
        """
        value = self.metadata.get(key)
        if not isinstance(value, array) or value.typecode in "fd":
            self.fail(
                f"the key {key} should be an array of integers" if value is not None else f"the key {key} is missing"
            )
        return tuple(int(v) for v in value)

    def strings(self, key: str) -> list[str] | None:
        """The string array under ``key``, or None where it is absent.

        Raises:
            FileFormatError: the key holds something else.
        """
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, list):
            self.fail(f"the key {key} should be an array of strings")
        return value


def printable(text: str) -> str:
    """``text`` on one line: names in a broken file may hold anything."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


# GGUF value types: struct code of each scalar; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _BOOL = 8, 9, 7
_MAX_KEY_BYTES, _MAX_NAME_BYTES, _MAX_DIMENSIONS = 65535, 63, 4
_MIN_VALUE_BYTES, _MIN_TENSOR_BYTES = 8 + 1 + 4 + 1, 8 + 1 + 4 + 8 + 4 + 8


class _Cursor:
    """A place in the mapped file that refuses to move past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def fail(self, message: str) -> NoReturn:
        raise FileFormatError(f"{self.path}: {printable(message)}")

    def need(self, n: int, what: str) -> int:
        """The place where ``n`` bytes of ``what`` start; moves past them."""
        start = self.at
        if n > self.size - start:
            self.fail(
                f"the file ends inside {what} (byte {start}: {n} bytes needed, {self.size - start} left); get it again"
            )
        self.at = start + n
        return start

    def number(self, code: str, what: str) -> int:
        return int(struct.unpack_from("<" + code, self.data, self.need(struct.calcsize("<" + code), what))[0])

    def text(self, what: str, limit: int | None = None) -> str:
        length = self.number("Q", what)
        if limit is not None and not 0 < length <= limit:
            self.fail(f"{what} at byte {self.at} is {length} bytes long, allowed are 1..{limit}: the header is corrupt")
        start = self.need(length, what)
        return self.data[start : start + length].decode("utf-8", "surrogateescape")

    def strings(self, count: int, what: str) -> list[str]:
        """``count`` strings; the hot loop of a header with a vocabulary, so checks are inlined."""
        data, at, size, out = self.data, self.at, self.size, []
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > size or start > size:
                self.fail(f"the file ends inside a string of {what} (byte {start}); get it again")
            out.append(data[start:at].decode("utf-8", "surrogateescape"))
        self.at = at
        return out


def read_header(path: str | Path) -> GgufHeader:
    """The checked header of the GGUF file at ``path``.

    Raises:
        FileFormatError: no such file, not GGUF, or anything in it is impossible.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(24)
            if start[:4] != b"GGUF":
                kind = "an empty file" if not start else f"it starts with {start[:4]!r}"
                raise FileFormatError(f"{path}: not a GGUF file ({kind}); give a .gguf file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(_Cursor(path, data))
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read(cursor: _Cursor) -> GgufHeader:
    cursor.need(4, "the magic")
    version = cursor.number("I", "the version")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version} is not supported (2 and 3 are); convert the model again")
    n_tensors, n_values = cursor.number("Q", "the tensor count"), cursor.number("Q", "the value count")
    left = cursor.size - cursor.at
    if n_values * _MIN_VALUE_BYTES > left or n_tensors * _MIN_TENSOR_BYTES > left:
        cursor.fail(f"{n_values} values and {n_tensors} tensors do not fit into {left} bytes: truncated or corrupt")

    metadata: dict[str, Value] = {}
    for _ in range(n_values):
        key = cursor.text("a key", _MAX_KEY_BYTES)
        if key in metadata:
            cursor.fail(f"the key {key!r} appears twice: the header is corrupt")
        metadata[key] = _read_value(cursor, key)

    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment % 8 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}, it must be a power of two of at least 8")
    infos = [_read_tensor_info(cursor) for _ in range(n_tensors)]
    base = -(-cursor.at // alignment) * alignment
    return GgufHeader(cursor.path, metadata, _place_tensors(cursor, infos, base, alignment))


def _read_value(cursor: _Cursor, key: str) -> Value:
    what = f"the value of {key!r}"
    kind = cursor.number("I", what)
    if kind == _STRING:
        return cursor.text(what)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _SCALARS:
        cursor.fail(f"{what} has the unknown type {kind}: the header is corrupt")
    code = "<" + _SCALARS[kind]
    value: Scalar = struct.unpack_from(code, cursor.data, cursor.need(struct.calcsize(code), what))[0]
    return value


def _read_array(cursor: _Cursor, key: str) -> Value:
    what = f"the array {key!r}"
    kind, count = cursor.number("I", what), cursor.number("Q", what)
    if kind == _STRING:
        if count * 8 > cursor.size - cursor.at:
            cursor.fail(f"{what} claims {count} strings, more than the file can hold: truncated or corrupt")
        return cursor.strings(count, what)
    if kind not in _SCALARS:
        cursor.fail(f"{what} has the unsupported element type {kind}: the header is corrupt")
    code = "B" if kind == _BOOL else _SCALARS[kind]
    n_bytes = count * struct.calcsize("<" + code)
    start = cursor.need(n_bytes, what)
    values: array[int] | array[float] = array(code)
    values.frombytes(cursor.data[start : start + n_bytes])
    return values


def _read_tensor_info(cursor: _Cursor) -> TensorInfo:
    """One tensor as the file says it: the offset is still relative to the data section."""
    name = cursor.text("a tensor name", _MAX_NAME_BYTES)
    n_dimensions = cursor.number("I", f"tensor {name!r}")
    if not 0 < n_dimensions <= _MAX_DIMENSIONS:
        cursor.fail(f"tensor {name!r} has {n_dimensions} dimensions, allowed are 1..{_MAX_DIMENSIONS}")
    shape = tuple(cursor.number("Q", f"tensor {name!r}") for _ in range(n_dimensions))
    kind, offset = cursor.number("I", f"tensor {name!r}"), cursor.number("Q", f"tensor {name!r}")
    if kind not in GGML_TYPES:
        cursor.fail(f"tensor {name!r} has the unknown type {kind}; convert or quantise it with the pinned llama.cpp")
    ggml_type = GGML_TYPES[kind]
    if 0 in shape or shape[0] % ggml_type.block:
        cursor.fail(f"tensor {name!r} has shape {list(shape)}, not whole rows of {ggml_type.name}")
    n_elements = 1
    for n in shape:
        n_elements *= n
    return TensorInfo(name, shape, kind, offset, n_elements // ggml_type.block * ggml_type.size)


def _place_tensors(cursor: _Cursor, infos: list[TensorInfo], base: int, alignment: int) -> dict[str, TensorInfo]:
    """Tensors with absolute offsets; ggml wants their data one after the other, each padded to the alignment."""
    placed: dict[str, TensorInfo] = {}
    expected = 0
    for info in infos:
        if info.name in placed:
            cursor.fail(f"tensor {info.name!r} appears twice: the header is corrupt")
        if info.offset != expected:
            cursor.fail(f"tensor {info.name!r} starts at data byte {info.offset}, expected {expected}: corrupt header")
        if base + info.offset + info.n_bytes > cursor.size:
            missing = base + info.offset + info.n_bytes - cursor.size
            cursor.fail(f"the file ends {missing} bytes before the end of tensor {info.name!r}; get it again")
        placed[info.name] = TensorInfo(info.name, info.shape, info.type, base + info.offset, info.n_bytes)
        expected += -(-info.n_bytes // alignment) * alignment
    return placed
