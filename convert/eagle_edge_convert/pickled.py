"""Reads the tensors of a pytorch_model.bin without trusting it.

The file is a zip archive of a pickle and raw storages. The pickle is run with an unpickler that knows the few names a
dictionary of tensors needs and refuses every other one, so nothing in the file can run code. Torch is not needed.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.errors import FileFormatError

from .safetensors import Entry, mapped

__all__ = ["open_file"]


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    bits: Any


_STORAGES = {
    "FloatStorage": _Storage("float32", np.float32),
    "HalfStorage": _Storage("float16", np.float16),
    "BFloat16Storage": _Storage("bfloat16", np.uint16),
    "LongStorage": _Storage("int64", np.int64),
    "IntStorage": _Storage("int32", np.int32),
    "BoolStorage": _Storage("bool", np.uint8),
}


@dataclass(frozen=True, slots=True)
class _Stored:
    """A storage named by the pickle: where its bytes are in the archive."""

    storage: _Storage
    member: str
    n_elements: int


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    """A view of a storage, as ``torch._utils._rebuild_tensor_v2`` describes it."""

    stored: _Stored
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _rebuild_tensor(stored: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _Rebuilt:
    numbers = (offset, *shape, *stride)
    if (
        not isinstance(stored, _Stored)
        or len(shape) != len(stride)
        or not all(type(n) is int and n >= 0 for n in numbers)
    ):
        raise pickle.UnpicklingError("it describes an impossible tensor")
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if math.prod(shape) > 0 and last >= stored.n_elements:
        raise pickle.UnpicklingError("it describes a tensor beyond its storage")
    return _Rebuilt(stored, int(offset), tuple(shape), tuple(stride))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which a dictionary of tensors does not need")

    def persistent_load(self, pid: Any) -> _Stored:
        kind, storage, key, _, n_elements = pid
        if kind != "storage" or not isinstance(storage, _Storage):
            raise pickle.UnpicklingError("it names a storage of an unknown kind")
        return _Stored(storage, str(key), int(n_elements))


def open_file(path: Path) -> dict[str, Entry]:
    """Name to entry of every tensor in ``path``.

    Raises:
        FileFormatError: not such a file, truncated, or it holds anything but a dictionary of tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl"))[: -len("data.pkl")]
            state = _Unpickler(io.BytesIO(archive.read(root + "data.pkl"))).load()
            if not isinstance(state, dict) or not all(isinstance(value, _Rebuilt) for value in state.values()):
                raise pickle.UnpicklingError("it is not a dictionary of tensors")
            return {str(name): _entry(path, archive, root, value) for name, value in state.items()}
    except (zipfile.BadZipFile, StopIteration, OSError):
        raise FileFormatError(f"{path}: not a zip-format torch file, or truncated; get it again") from None
    except Exception as error:  # a hostile pickle can provoke nearly any of them
        raise FileFormatError(f"{path}: refused: {' '.join(str(error).split())[:200]}") from None


def _entry(path: Path, archive: zipfile.ZipFile, root: str, tensor: _Rebuilt) -> Entry:
    stored = tensor.stored
    member = archive.getinfo(f"{root}data/{stored.member}")
    if member.file_size != stored.n_elements * np.dtype(stored.storage.bits).itemsize:
        raise ValueError(f"storage {stored.member} has another size than it says")
    offset = _data_offset(path, member)

    def load() -> npt.NDArray[Any]:
        flat = mapped(path, stored.storage.bits, offset, (stored.n_elements,))
        strides = tuple(step * flat.itemsize for step in tensor.stride)
        return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides, writeable=False)

    return Entry(tensor.shape, stored.storage.dtype, load)


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin: after its local header, whose two lengths are at 26 and 28."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError("its tensors are compressed, which torch never does")
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(30)
        size = file.seek(0, io.SEEK_END)
    start = (
        member.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    )
    if header[:4] != b"PK\x03\x04" or start + member.file_size > size:
        raise ValueError(f"the member {member.filename} lies outside the file")
    return start
