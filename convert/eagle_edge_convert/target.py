"""What the converter needs to know of the target, from its GGUF alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle_edge.errors import FileFormatError
from eagle_edge.gguf_header import read_header

__all__ = ["TargetFacts", "read_target"]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The sizes and the name of a target."""

    path: Path
    name: str
    n_embd: int
    n_layer: int
    n_vocab: int


def read_target(path: Path) -> TargetFacts:
    """The facts in the GGUF file ``path``.

    Raises:
        FileFormatError: not a GGUF model with a tokenizer.
    """
    header = read_header(path)
    arch = header.architecture
    tokens = header.strings("tokenizer.ggml.tokens")
    if arch in ("eagle", "eagle3"):
        header.fail("this is a draft head; --target wants the model that the head drafts for")
    if not tokens:
        raise FileFormatError(f"{path}: has no tokenizer; --target wants a complete model")
    return TargetFacts(
        path=path,
        name=header.get("general.name", str, path.stem),
        n_embd=header.get(f"{arch}.embedding_length", int),
        n_layer=header.get(f"{arch}.block_count", int),
        n_vocab=len(tokens),
    )
