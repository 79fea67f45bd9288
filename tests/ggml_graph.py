"""One-operation ggml graphs on the CPU backend, through the installed libraries: what kernels are tested with."""

from __future__ import annotations

import ctypes as c
from typing import Any

import llama_cpp  # noqa: F401  loads the libraries
import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
F32, F16, I32 = 0, 1, 26

# By SONAME: the copies llama_cpp has loaded, whatever their paths.
_BASE, _CPU = c.CDLL("libggml-base.so.0"), c.CDLL("libggml-cpu.so.0")


def _declare(library: c.CDLL, name: str, result: Any, *args: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, args
    return function


class _InitParams(c.Structure):
    _fields_ = (("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool))


_P = c.c_void_p
_init = _declare(_BASE, "ggml_init", _P, _InitParams)
_free = _declare(_BASE, "ggml_free", None, _P)
_new_tensor = _declare(_BASE, "ggml_new_tensor", _P, _P, c.c_int, c.c_int, c.POINTER(c.c_int64))
_mul_mat = _declare(_BASE, "ggml_mul_mat", _P, _P, _P, _P)
_flash_attn = _declare(_BASE, "ggml_flash_attn_ext", _P, _P, _P, _P, _P, _P, c.c_float, c.c_float, c.c_float)
_new_graph = _declare(_BASE, "ggml_new_graph", _P, _P)
_expand = _declare(_BASE, "ggml_build_forward_expand", None, _P, _P)
_alloc = _declare(_BASE, "ggml_backend_alloc_ctx_tensors_from_buft", _P, _P, _P)
_free_buffer = _declare(_BASE, "ggml_backend_buffer_free", None, _P)
_row_size = _declare(_BASE, "ggml_row_size", c.c_size_t, c.c_int, c.c_int64)
_quantize = _declare(_BASE, "ggml_quantize_chunk", c.c_size_t, c.c_int, _P, _P, c.c_int64, c.c_int64, c.c_int64, _P)
_set = _declare(_BASE, "ggml_backend_tensor_set", None, _P, _P, c.c_size_t, c.c_size_t)
_get = _declare(_BASE, "ggml_backend_tensor_get", None, _P, _P, c.c_size_t, c.c_size_t)
_nbytes = _declare(_BASE, "ggml_nbytes", c.c_size_t, _P)
_compute = _declare(_BASE, "ggml_backend_graph_compute", c.c_int, _P, _P)
_free_backend = _declare(_BASE, "ggml_backend_free", None, _P)
_supports = _declare(_BASE, "ggml_backend_supports_op", c.c_bool, _P, _P)
_buft_name = _declare(_BASE, "ggml_backend_buft_name", c.c_char_p, _P)
_proc = _declare(_BASE, "ggml_backend_reg_get_proc_address", _P, _P, c.c_char_p)
_device = _declare(_BASE, "ggml_backend_reg_dev_get", _P, _P, c.c_size_t)
_cpu_init = _declare(_CPU, "ggml_backend_cpu_init", _P)
_cpu_threads = _declare(_CPU, "ggml_backend_cpu_set_n_threads", None, _P, c.c_int)
_cpu_buft = _declare(_CPU, "ggml_backend_cpu_buffer_type", _P)
_cpu_reg = _declare(_CPU, "ggml_backend_cpu_reg", _P)


def _first_extra_buffer_type() -> int | None:
    extra = c.CFUNCTYPE(c.POINTER(_P), _P)(_proc(_cpu_reg(), b"ggml_backend_dev_get_extra_bufts"))
    first = extra(_device(_cpu_reg(), 0))[0]
    return first if first and _buft_name(first) == b"EAGLE_EDGE" else None


class Graph:
    """A graph under construction; weights live in the kernels' buffer type, or in plain memory."""

    def __init__(self, native: bool, n_threads: int = 2) -> None:
        self._weights_buft = _first_extra_buffer_type() if native else _cpu_buft()
        self._weights = _init(_InitParams(1 << 16, None, True))
        self._values = _init(_InitParams(1 << 20, None, True))
        self._backend = _cpu_init()
        _cpu_threads(self._backend, n_threads)
        self._data: list[tuple[int, Any]] = []

    def _tensor(self, context: int, kind: int, shape: tuple[int, ...], data: Any) -> int:
        tensor = _new_tensor(context, kind, len(shape), (c.c_int64 * len(shape))(*reversed(shape)))
        self._data.append((tensor, np.ascontiguousarray(data)))
        return int(tensor)

    def weight(self, kind: int, shape: tuple[int, int], data: Any) -> int:
        """A [rows, K] matrix of ggml type ``kind`` from its bytes."""
        return self._tensor(self._weights, kind, shape, data)

    def value(self, kind: int, data: Any) -> int:
        """A float array, numpy's shape."""
        return self._tensor(self._values, kind, data.shape, data)

    def mul_mat(self, weight: int, x: int) -> int:
        return int(_mul_mat(self._values, weight, x))

    def attention(self, q: int, k: int, v: int, mask: int, scale: float) -> int:
        return int(_flash_attn(self._values, q, k, v, mask, scale, 0.0, 0.0))

    def run(self, result: int, shape: tuple[int, ...]) -> Float32 | None:
        """The value of ``result``; None when the backend would not take the operation."""
        graph = _new_graph(self._values)
        _expand(graph, result)
        buffers = [_alloc(self._values, _cpu_buft())]
        if len(self._data) and self._weights_buft:
            buffers.append(_alloc(self._weights, self._weights_buft))
        taken = bool(_supports(self._backend, result))
        out = np.empty(shape, np.float32)
        if taken:
            for tensor, data in self._data:
                assert _nbytes(tensor) == data.nbytes
                _set(tensor, data.ctypes.data, 0, data.nbytes)
            assert _compute(self._backend, graph) == 0
            _get(result, out.ctypes.data, 0, out.nbytes)
        for buffer in buffers:
            if buffer:
                _free_buffer(buffer)
        _free(self._weights)
        _free(self._values)
        _free_backend(self._backend)
        return out if taken else None


def quantise(kind: int, weight: Float32) -> npt.NDArray[np.uint8]:
    """A float matrix [rows, K] as ggml stores it in a type: bytes [rows, row_bytes]."""
    out = np.zeros((weight.shape[0], _row_size(kind, weight.shape[1])), np.uint8)
    data = np.ascontiguousarray(weight)
    _quantize(kind, data.ctypes.data, out.ctypes.data, 0, *weight.shape, None)
    return out


def multiply(
    kind: int, weight: npt.NDArray[np.uint8], shape: tuple[int, int], x: Float32, native: bool, n_threads: int = 2
) -> Float32 | None:
    """The product [n, rows] of x [n, K] and a weight [rows, K]."""
    graph = Graph(native, n_threads)
    result = graph.mul_mat(graph.weight(kind, shape, weight), graph.value(F32, x))
    return graph.run(result, (x.shape[0], shape[0]))


def attend(q: Float32, k: Any, v: Any, mask: Any, kind: int = F16, n_threads: int = 2) -> Float32:
    """The attention [n, heads, D] of q [heads, n, D] over k and v [kv heads, cells, D], mask [n, cells] float16."""
    graph = Graph(False, n_threads)
    tensors = graph.value(F32, q), graph.value(kind, k), graph.value(kind, v), graph.value(F16, mask)
    out = graph.run(graph.attention(*tensors, 1.0 / float(np.sqrt(q.shape[2]))), (q.shape[1], q.shape[0], v.shape[2]))
    assert out is not None
    return out
