"""The proof of a conversion: the converted model against its source in transformers, on a short text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_edge.errors import FileFormatError

from .quantize import bits_per_weight
from .reference import run_process

__all__ = ["Proof", "free_bytes", "prove_model", "tolerance"]

TEXT = (
    "The river had risen in the night, and by 6:30 the whole village (all 214 of them) stood on the bridge, watching."
)
# Relative error of all logits by bits a weight has; a wrong row order or norm gives about 1.4, whatever the type.
_TOLERANCE = ((31, 2e-3), (15, 0.06), (8, 0.15), (6.5, 0.25), (5.4, 0.4), (4, 0.6), (0, 1.1))


@dataclass(frozen=True, slots=True)
class Proof:
    """How close the converted model is to its source.

    Attributes:
        n_tokens: positions compared.
        max_difference: the largest difference of a logit, both about the mean of their position.
        relative_error: root mean square of these differences over that of the source's logits about their mean.
        top1_agreement: the part of positions whose best token is the same.
        same_tokens: whether both tokenizers cut the text alike; None where the folder has none to load.
        dtype: the type that transformers computed in.
    """

    n_tokens: int
    max_difference: float
    relative_error: float
    top1_agreement: float
    same_tokens: bool | None
    dtype: str

    def __str__(self) -> str:
        tokens = {True: "same tokens", False: "other tokens", None: "tokenizer not compared"}[self.same_tokens]
        return (
            f"logits of {self.n_tokens} positions against transformers ({self.dtype}): largest difference "
            f"{self.max_difference:.4g}, relative error {self.relative_error:.2g}, best token the same in "
            f"{self.top1_agreement:.0%}; {tokens}"
        )


def prove_model(
    checkpoint: Path, file: Path, quantize: str, n_params: int, trust_remote_code: bool = False
) -> Proof | str:
    """The proof, or a sentence that says why there is none.

    Raises:
        FileFormatError: the two do not compute the same.
    """
    dtype = _dtype_that_fits(n_params)
    if dtype is None:
        return f"not checked against transformers: {n_params / 1e9:.1f} billion parameters do not fit into memory"
    job = {
        "checkpoint": str(checkpoint.resolve()),
        "file": str(file.resolve()),
        "text": TEXT,
        "dtype": dtype,
        "trust_remote_code": trust_remote_code,
    }
    answer: dict[str, Any] = run_process("proof_process", job)
    if "skipped" in answer:
        return f"not checked against transformers: {answer['skipped']}"
    if "error" in answer:
        raise FileFormatError(f"{checkpoint}: the check failed: {answer['error']}")
    proof = Proof(**answer)
    if not proof.relative_error <= tolerance(quantize):
        raise FileFormatError(f"{checkpoint}: the converted model computes something else: {proof}")
    if proof.same_tokens is False:
        raise FileFormatError(f"{checkpoint}: the converted tokenizer cuts text differently: {proof}")
    return proof


def _dtype_that_fits(n_params: int) -> str | None:
    """float32 when twice the model fits into the memory that is free, else bfloat16, else None."""
    free = free_bytes()
    if n_params * 6 < free:
        return "float32"
    return "bfloat16" if n_params * 4 < free else None


def tolerance(quantize: str) -> float:
    """The largest relative error of all logits that the storage type explains."""
    return next(limit for bits, limit in _TOLERANCE if bits_per_weight(quantize) >= bits)


def free_bytes() -> int:
    """Memory that is free, or a guess where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30
