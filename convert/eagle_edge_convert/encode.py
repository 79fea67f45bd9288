"""Numbers into ggml's storage types, a few rows at a time, by the quantiser that the engine itself links."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle_edge.errors import DependencyError, FileFormatError

__all__ = [
    "QUANTIZATIONS",
    "Quantization",
    "encode_rows",
    "llama_library",
    "matrix_type",
    "n_encoded_bytes",
    "whole_blocks",
]

Kind = gguf.GGMLQuantizationType
FileType = gguf.LlamaFileType

FLOAT_TYPES = (Kind.F32, Kind.F16, Kind.BF16)
MAX_HALF = 65504.0  # quantised blocks keep their scales in half precision


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a head is stored: matrices as ``kind``, values and the way down from the MLP as ``fine``.

    The output matrix is never coarser than Q6_K, as in llama.cpp's own files of any type, or Q5_1 in narrow heads.
    """

    kind: Kind
    file_type: FileType
    fine: Kind | None = None


QUANTIZATIONS: Mapping[str, Quantization] = {
    "f32": Quantization(Kind.F32, FileType.ALL_F32),
    "f16": Quantization(Kind.F16, FileType.MOSTLY_F16),
    "bf16": Quantization(Kind.BF16, FileType.MOSTLY_BF16),
    "q8_0": Quantization(Kind.Q8_0, FileType.MOSTLY_Q8_0),
    "q6_k": Quantization(Kind.Q6_K, FileType.MOSTLY_Q6_K),
    "q5_k_m": Quantization(Kind.Q5_K, FileType.MOSTLY_Q5_K_M, Kind.Q6_K),
    "q5_k_s": Quantization(Kind.Q5_K, FileType.MOSTLY_Q5_K_S),
    "q5_1": Quantization(Kind.Q5_1, FileType.MOSTLY_Q5_1),
    "q5_0": Quantization(Kind.Q5_0, FileType.MOSTLY_Q5_0),
    "q4_k_m": Quantization(Kind.Q4_K, FileType.MOSTLY_Q4_K_M, Kind.Q6_K),
    "q4_k_s": Quantization(Kind.Q4_K, FileType.MOSTLY_Q4_K_S),
    "q4_1": Quantization(Kind.Q4_1, FileType.MOSTLY_Q4_1, Kind.Q6_K),
    "q4_0": Quantization(Kind.Q4_0, FileType.MOSTLY_Q4_0, Kind.Q6_K),
    "iq4_nl": Quantization(Kind.IQ4_NL, FileType.MOSTLY_IQ4_NL, Kind.Q6_K),
    "iq4_xs": Quantization(Kind.IQ4_XS, FileType.MOSTLY_IQ4_XS),
    "q3_k_m": Quantization(Kind.Q3_K, FileType.MOSTLY_Q3_K_M, Kind.Q5_K),
}
# llama.cpp keeps these finer in its _M mixtures. In a head of one layer they and the output matrix lose the most: the
# packaged head has 3 to 5 % less tau with all of it in Q4_0 than in f16, and 1 % less with these matrices finer.
_FINE = ("attn_v.weight", "ffn_down.weight")
_COARSEST_OUTPUT = Kind.Q6_K
_FINE_AND_NARROW = Kind.Q5_1  # where rows are not whole blocks of 256; Q8_0 would read a third more for 0.3 % of tau
_FINER, _FALLEN_BACK = "kept finer, since drafting loses most by them", "rows are not whole blocks of that type"
# What stands in where rows are not whole blocks of 256, as in llama.cpp's quantiser.
_FALLBACK = {
    Kind.Q3_K: Kind.IQ4_NL,
    Kind.Q4_K: Kind.Q5_0,
    Kind.Q5_K: Kind.Q5_1,
    Kind.Q6_K: Kind.Q8_0,
    Kind.IQ4_XS: Kind.IQ4_NL,
}


def matrix_type(name: str, width: int, quantization: Quantization) -> tuple[Kind, str]:
    """The type of a matrix whose rows are ``width`` long, and why it is not the one asked for; "" where it is."""
    wanted = quantization.kind
    if name == "output.weight":
        wanted = max(wanted, _COARSEST_OUTPUT, key=_bits)
    elif quantization.fine is not None and name.endswith(_FINE):
        wanted = quantization.fine
    kind = whole_blocks(wanted, width)
    if wanted is quantization.kind:
        return kind, "" if kind is wanted else _FALLEN_BACK
    if kind is not wanted:
        kind = max(whole_blocks(_FINE_AND_NARROW, width), whole_blocks(quantization.kind, width), key=_bits)
    return kind, _FINER


def whole_blocks(kind: Kind, width: int) -> Kind:
    """The type itself, or what stands in for it where rows of ``width`` numbers are not whole blocks of it."""
    while width % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = _FALLBACK.get(kind, Kind.F16)
    return kind


def _bits(kind: Kind) -> float:
    """Of a number, the scales of its block included."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return 8 * size / block


def n_encoded_bytes(shape: tuple[int, ...], kind: Kind) -> int:
    """Bytes of a tensor, ``shape`` in torch's order."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n = 1
    for length in shape:
        n *= length
    return n // block * size


def encode_rows(values: npt.NDArray[Any], kind: Kind, what: str) -> bytes | memoryview:
    """The bytes of rows [n, width] of float32, or of float16 bits (uint16 for bfloat16) that are to stay as they are.

    Raises:
        FileFormatError: a value is not finite, or too large for the type.
    """
    if kind is Kind.I64:
        return np.ascontiguousarray(values, np.int64).data.cast("B")
    if values.dtype in (np.float16, np.uint16):
        return _unchanged(values, what)
    values = np.ascontiguousarray(values, np.float32)
    largest = float(np.abs(values).max(initial=0))
    if not np.isfinite(largest):
        raise FileFormatError(f"{what} holds NaN or infinite values; the checkpoint is broken")
    if kind not in (Kind.F32, Kind.BF16) and largest > MAX_HALF:
        raise FileFormatError(f"{what} holds {largest:g}, more than half precision can; use --quantize bf16 or f32")
    if kind is Kind.F32:
        return values.data.cast("B")
    if kind is Kind.F16:
        return values.astype(np.float16).data.cast("B")
    if kind is Kind.BF16:
        return gguf.quants.quantize(values, kind).tobytes()
    return _quantized(values, kind)


def _unchanged(values: npt.NDArray[Any], what: str) -> memoryview:
    bits = np.ascontiguousarray(values).view(np.uint16)
    exponent = 0x7C00 if values.dtype == np.float16 else 0x7F80
    if int((bits & exponent).max(initial=0)) == exponent:
        raise FileFormatError(f"{what} holds NaN or infinite values; the checkpoint is broken")
    return bits.data.cast("B")


def _quantized(values: npt.NDArray[np.float32], kind: Kind) -> bytes:
    out = np.empty(n_encoded_bytes(values.shape, kind), np.uint8)
    n_rows, width = values.shape[0], values.shape[-1]
    written = _quantizer()(
        int(kind),
        values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        out.ctypes.data_as(ctypes.c_void_p),
        0,
        n_rows,
        width,
        None,
    )
    assert written == out.nbytes, (kind, written, out.nbytes)
    return out.tobytes()


@functools.cache
def _quantizer() -> Any:
    function = llama_library("ggml-base").ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_float),
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_float),
    ]
    return function


def llama_library(name: str) -> ctypes.CDLL:
    """A shared library of the installed llama_cpp package, which is not imported for it.

    Raises:
        DependencyError: the package or the library is not there.
    """
    spec = importlib.util.find_spec("llama_cpp")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    file = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    for folder in folders:
        path = Path(folder) / "lib" / file
        if path.exists():
            return ctypes.CDLL(str(path))
    raise DependencyError(f"{file} of llama-cpp-python is not installed; run: pip install llama-cpp-python==0.3.36")
