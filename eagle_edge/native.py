"""The only importer of the compiled module: status to exception, array checks, handles that close.

Loading it decides one thing for the process: how long idle worker threads of libgomp spin (``GOMP_SPINCOUNT``). The
default spins on and on, which on a busy machine costs up to seconds a token; half a millisecond outlasts what lies
between two evaluations, so that nobody has to be woken for the next one.
"""

from __future__ import annotations

import os
import threading

# Read once, when libgomp loads: it has to be set before llama_cpp is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "60000")

from typing import Any

import llama_cpp  # noqa: F401  loads libllama, which the shim then resolves by SONAME
import numpy as np

from ._native import ffi, lib
from .errors import EagleEdgeError, FileFormatError, NativeError

__all__ = ["Handle", "array", "call", "ffi", "lib", "out_array"]

_ERRORS: dict[int, type[Exception]] = {
    lib.EE_ERR_ARG: ValueError,
    lib.EE_ERR_FILE: FileFormatError,
    lib.EE_ERR_MEMORY: NativeError,
    lib.EE_ERR_BACKEND: NativeError,
}

lib.ee_log_level(1 if os.environ.get("EAGLE_EDGE_LOG") else 0)
lib.ee_leave_out_broken_kernels()  # before anything loads a model


def call(function: Any, *args: Any) -> None:
    """Call a fallible native function and raise what its status means, with its own text."""
    err = _error.text
    status = function(*args, err, _ERROR_BYTES)
    if status != lib.EE_OK:
        raise _ERRORS.get(status, NativeError)(ffi.string(err).decode("utf-8", "replace"))


_ERROR_BYTES = 512


class _ErrorText(threading.local):
    """Room for the text of an error, made once in every thread."""

    def __init__(self) -> None:
        self.text = ffi.new("char[]", _ERROR_BYTES)


_error = _ErrorText()


def array(values: Any, dtype: Any, ndim: int = 1) -> tuple[np.ndarray[Any, Any], Any]:
    """``values`` as a C-contiguous array of ``dtype`` and ``ndim``, and the pointer to it.

    Raises:
        ValueError: the number of dimensions differs.
    """
    out = np.ascontiguousarray(values, dtype=dtype)
    if out.ndim != ndim:
        raise ValueError(f"expected {ndim} dimensions, got shape {out.shape}")
    return out, ffi.from_buffer(_CTYPES[out.dtype.char], out)


def out_array(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """An uninitialised array for a native function to fill, and the pointer to it."""
    out = np.empty(shape, dtype=dtype)
    return out, ffi.from_buffer(_CTYPES[out.dtype.char], out, require_writable=True)


_CTYPES = {"i": "int32_t[]", "I": "uint32_t[]", "f": "float[]", "b": "int8_t[]"}


class Handle:
    """An owned native object: freed once, by ``close()``, ``with`` or the collector."""

    def __init__(self, pointer: Any, free: Any) -> None:
        self._pointer = ffi.gc(pointer, free)

    @property
    def pointer(self) -> Any:
        """The native pointer.

        Raises:
            EagleEdgeError: the object is closed.
        """
        if self._pointer is None:
            raise EagleEdgeError("this object is closed")
        return self._pointer

    def close(self) -> None:
        """Free the native object now; closing again does nothing."""
        if self._pointer is not None:
            ffi.release(self._pointer)
            self._pointer = None
