"""What the head converter needs to know of the target, from its GGUF alone or from its Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle_edge.errors import FileFormatError
from eagle_edge.gguf_header import GgufHeader, read_header

from .read import open_checkpoint, read_json

__all__ = ["TargetFacts", "matrix_rows", "read_target"]

Rows = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The sizes and the name of a target, and where its tokenizer and embedding are.

    Attributes:
        path: the GGUF file, or the Hugging Face folder.
        embedding: rows [n, E] of the token embedding for ids [n]; None where there is none to read.
        tied: whether the output matrix is the token embedding.
        licence: of the target, "" where it is not said.
    """

    path: Path
    name: str
    n_embd: int
    n_layer: int
    n_vocab: int
    embedding: Rows | None = None
    tied: bool = False
    licence: str = ""


def read_target(path: Path) -> TargetFacts:
    """The facts in the GGUF file or the folder ``path``.

    Raises:
        FileFormatError: not a model with a tokenizer.
    """
    return _from_folder(path) if path.is_dir() else _from_gguf(read_header(path))


def _from_gguf(header: GgufHeader) -> TargetFacts:
    arch, tokens = header.architecture, header.strings("tokenizer.ggml.tokens")
    if arch in ("eagle", "eagle3"):
        header.fail("this is a draft head; --target wants the model that the head drafts for")
    if not tokens:
        raise FileFormatError(f"{header.path}: has no tokenizer; --target wants a complete model")
    return TargetFacts(
        path=header.path,
        name=header.get("general.name", str, header.path.stem),
        n_embd=header.get(f"{arch}.embedding_length", int),
        n_layer=header.get(f"{arch}.block_count", int),
        n_vocab=len(tokens),
        embedding=matrix_rows(header, "token_embd.weight"),
        tied="output.weight" not in header.tensors,
        licence=header.get("general.license", str, ""),
    )


def matrix_rows(header: GgufHeader, name: str) -> Rows | None:
    """Rows of a matrix in a GGUF file, as numbers, by their indices; None where it has no such matrix."""
    info = header.tensors.get(name)
    if info is None or len(info.shape) != 2:
        return None
    width, n_rows = info.shape
    kind, row_bytes = gguf.GGMLQuantizationType(info.type), info.n_bytes // n_rows

    def rows(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        data = np.memmap(header.path, np.uint8, "r", info.offset, (n_rows, row_bytes))[ids]
        values = gguf.quants.dequantize(data, kind) if kind.name not in ("F32", "F16") else None
        if values is None:
            values = data.view(np.float32 if kind.name == "F32" else np.float16)
        return np.asarray(values, np.float32).reshape(len(ids), width)

    return rows


def _from_folder(folder: Path) -> TargetFacts:
    config = read_json(folder / "config.json")
    text: Any = config.get("text_config")
    values = {**config, **text} if isinstance(text, dict) else config
    sizes = {}
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        if type(values.get(key)) is not int or values[key] < 1:
            raise FileFormatError(f"{folder}/config.json: {key} is {values.get(key)!r}: not a model to draft for")
        sizes[key] = values[key]
    return TargetFacts(
        path=folder,
        name=str(config.get("_name_or_path") or folder.resolve().name),
        n_embd=sizes["hidden_size"],
        n_layer=sizes["num_hidden_layers"],
        n_vocab=sizes["vocab_size"],
        embedding=_folder_rows(folder),
        tied=values.get("tie_word_embeddings") is True,
    )


def _folder_rows(folder: Path) -> Rows | None:
    """None for a folder that holds the configuration and the tokenizer only, which is enough to convert a head."""
    try:
        tensors = open_checkpoint(folder).tensors
    except FileFormatError:
        return None
    found = [tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")]
    if len(found) != 1 or len(found[0].shape) != 2:
        return None
    return lambda ids: np.asarray(found[0].decode(found[0].load()[ids]), np.float32)
