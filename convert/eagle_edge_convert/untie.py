"""An output matrix of its own for a model that shares its token embedding with it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from eagle_edge.gguf_header import read_header

from .encode import QUANTIZATIONS, encode_rows, whole_blocks
from .target import matrix_rows

__all__ = ["is_tied", "untie_output"]

CHUNK_ROWS = 4096


def is_tied(path: Path) -> bool:
    """Whether the model in this GGUF reads its logits off its token embedding."""
    return "output.weight" not in read_header(path).tensors


def untie_output(source: Path, output: Path, quantize: str, embedding: Path | None = None) -> None:
    """Write the tied model ``source`` as ``output``, with its embedding once more as the output matrix.

    Args:
        source: the model; its tensors are copied as they are.
        output: another file.
        quantize: how the new matrix is stored, one of ``encode.QUANTIZATIONS``.
        embedding: a GGUF of the same model whose embedding has lost less; ``source`` by default.
    """
    header = read_header(embedding or source)
    rows, (width, n_rows) = matrix_rows(header, "token_embd.weight"), header.tensors["token_embd.weight"].shape
    assert rows is not None
    kind = whole_blocks(QUANTIZATIONS[quantize].kind, width)
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(output, header.architecture)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if field.types[1:] else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    parts = [np.arange(start, min(start + CHUNK_ROWS, n_rows)) for start in range(0, n_rows, CHUNK_ROWS)]
    data = b"".join(encode_rows(rows(part), kind, "the token embedding") for part in parts)
    writer.add_tensor("output.weight", np.frombuffer(data, np.uint8).reshape(n_rows, -1), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
