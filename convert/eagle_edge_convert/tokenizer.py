"""A GGUF file that holds the target's tokenizer: the target itself, or one made from its Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .target import TargetFacts

__all__ = ["tokenizer_file"]


@contextmanager
def tokenizer_file(facts: TargetFacts) -> Iterator[Path]:
    """The file; one that was made for this goes when the block ends.

    Raises:
        FileFormatError: the folder's tokenizer is not one that llama.cpp knows.
    """
    if facts.path.is_file():
        yield facts.path
        return
    raise NotImplementedError
