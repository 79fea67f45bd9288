"""Writes a head as GGUF: metadata, the target's tokenizer, tensors one at a time; complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle_edge.head_format import HeadConfig

__all__ = ["QUANTIZATIONS", "write_gguf"]

Array = npt.NDArray[Any]
Kind = gguf.GGMLQuantizationType

QUANTIZATIONS = {
    "f32": (Kind.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (Kind.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (Kind.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (Kind.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (Kind.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}


def write_gguf(
    path: Path,
    config: HeadConfig,
    loaders: Mapping[str, Callable[[], Array]],
    tokenizer_file: Path,
    quantize: str,
    general: Mapping[str, str],
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the head and return the file's size in bytes.

    Raises:
        ValueError: ``quantize`` is not a key of ``QUANTIZATIONS``.
    """
    if quantize not in QUANTIZATIONS:
        raise ValueError(f"quantize must be one of {', '.join(QUANTIZATIONS)}, got {quantize!r}")
    kind, file_type = QUANTIZATIONS[quantize]
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(partial), config.architecture)
    try:
        _add_metadata(writer, config, general, file_type)
        _copy_tokenizer(writer, tokenizer_file)
        _add_tensors(writer, loaders, kind, progress)
        writer.close()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        writer.close()
        partial.unlink(missing_ok=True)
        raise
    return path.stat().st_size


def _add_metadata(
    writer: gguf.GGUFWriter, config: HeadConfig, general: Mapping[str, str], file_type: gguf.LlamaFileType
) -> None:
    writer.add_type("model")
    writer.add_file_type(int(file_type))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, text in general.items():
        writer.add_string(key, text)
    for key, value in config.to_metadata().items():
        if key == "general.architecture":
            continue  # the writer's constructor adds it
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    """Every ``tokenizer.*`` key of ``source``, with its type."""
    for key, field in gguf.GGUFReader(str(source)).fields.items():
        if key.startswith("tokenizer."):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)


def _add_tensors(
    writer: gguf.GGUFWriter,
    loaders: Mapping[str, Callable[[], Array]],
    kind: gguf.GGMLQuantizationType,
    progress: Callable[[int, int], None] | None,
) -> None:
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    encoded: dict[str, tuple[Array, Kind | None]] = {}
    for name, load in loaders.items():
        data = np.ascontiguousarray(load())
        if data.ndim == 2 and data.shape[-1] % block == 0:
            encoded[name] = (gguf.quants.quantize(data.astype(np.float32, copy=False), kind), kind)
        else:
            encoded[name] = (data if data.dtype == np.int64 else data.astype(np.float32), None)
    for name, (data, raw) in encoded.items():
        writer.add_tensor(name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    total = sum(data.nbytes for data, _ in encoded.values())
    writer.write_tensors_to_file()
    if progress is not None:
        progress(total, total)
