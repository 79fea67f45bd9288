"""An output matrix of its own for a model that shares its token embedding with it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from eagle_edge.gguf_header import read_header

from .encode import encode_rows
from .quantize import base_kind
from .target import matrix_rows

__all__ = ["is_tied", "untie_output"]

CHUNK_ROWS = 4096


def is_tied(path: Path) -> bool:
    """Whether the model in this GGUF reads its logits off its token embedding."""
    return "output.weight" not in read_header(path).tensors


def untie_output(source: Path, output: Path, quantize: str) -> None:
    """Write the tied model ``source`` as ``output``, with its embedding once more as the output matrix.

    Raises:
        ValueError: not a storage type.
    """
    kind = base_kind(quantize)
    header = read_header(source)
    rows, info = matrix_rows(header, "token_embd.weight"), header.tensors["token_embd.weight"]
    assert rows is not None
    if kind is None or info.shape[0] % gguf.GGML_QUANT_SIZES[kind][0]:
        raise ValueError(f"the output matrix, {info.shape[0]} wide, cannot be stored as {quantize}")
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(output, header.architecture)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if field.types[1:] else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    ids = np.arange(info.shape[1], dtype=np.int64)
    parts = [ids[start : start + CHUNK_ROWS] for start in range(0, len(ids), CHUNK_ROWS)]
    data = b"".join(encode_rows(rows(part), kind, "the token embedding") for part in parts)
    writer.add_tensor("output.weight", np.frombuffer(data, np.uint8).reshape(len(ids), -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
