"""A GGUF file that holds the target's tokenizer: the target itself, or one made from its Hugging Face folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .reference import run_reference
from .target import TargetFacts

__all__ = ["tokenizer_file"]


@contextmanager
def tokenizer_file(facts: TargetFacts, pre_tokenizer: str | None = None) -> Iterator[Path]:
    """The file; one that was made for this goes when the block ends.

    Raises:
        DependencyError: llama.cpp's converter cannot be fetched.
        FileFormatError: the folder's tokenizer is not one that llama.cpp knows.
    """
    if facts.path.is_file():
        yield facts.path
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "tokenizer.gguf"
        run_reference(facts.path, path, "f16", vocab_only=True, pre_tokenizer=pre_tokenizer)
        yield path
