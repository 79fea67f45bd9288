"""The proof of a converted head: its GGUF, run by the engine, against its checkpoint, run by torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_edge.errors import FileFormatError

from .proof import free_bytes, tolerance
from .reference import run_process

__all__ = ["HeadProof", "prove_head"]

# On that text the packaged head guesses its target in 34 % of places, in 23 % with its layers in the wrong order or its
# residual read wrongly, and a random head in none: this tells strangers, not wrong settings.
_FITS = 0.1


@dataclass(frozen=True, slots=True)
class HeadProof:
    """How close the converted head is to its checkpoint, and whether it fits the target.

    Attributes:
        n_pairs, n_nodes: rows compared: positions of a text, and nodes of a tree under its end.
        max_difference: the largest difference of a logit, both about the mean of their row.
        relative_error: root mean square of these differences over that of the checkpoint's logits about their mean.
        top1_agreement: the part of rows whose best token is the same.
        random_because: why the features are random numbers; "" where they are the target's own on a short text.
        n_hits: places of that text where the head's best token is the target's; None with random features.
    """

    n_pairs: int
    n_nodes: int
    max_difference: float
    relative_error: float
    top1_agreement: float
    random_because: str = ""
    n_hits: int | None = None

    @property
    def seems_to_fit(self) -> bool | None:
        """Whether the head guesses the target often enough to have been trained for it; None when not measured."""
        return None if self.n_hits is None else self.n_hits >= _FITS * self.n_pairs

    def __str__(self) -> str:
        text = (
            f"logits of {self.n_pairs} positions and {self.n_nodes} nodes against torch: largest difference "
            f"{self.max_difference:.4g}, relative error {self.relative_error:.2g}, best token the same in "
            f"{self.top1_agreement:.0%}"
        )
        if self.n_hits is None:
            return f"{text}; on random features, for {self.random_because}"
        return f"{text}; it guesses the target's own next token in {self.n_hits} of {self.n_pairs} places"


def prove_head(checkpoint: Path, target: Path, file: Path, quantize: str) -> HeadProof | str:
    """The proof, or a sentence that says why there is none.

    Raises:
        FileFormatError: the two do not compute the same, or the engine refuses the file.
    """
    random_because = ""
    if target.is_dir():
        random_because = "the target is no GGUF that could be run"
    elif target.stat().st_size > free_bytes():
        random_because = "the target does not fit into the memory that is free"
    job = {
        "checkpoint": str(checkpoint.resolve()),
        "target": str(target.resolve()),
        "file": str(file.resolve()),
        "random_because": random_because,
    }
    answer: dict[str, Any] = run_process("head_proof_process", job)
    if "skipped" in answer:
        return f"not checked against the checkpoint: {answer['skipped']}"
    if "error" in answer:
        raise FileFormatError(f"{checkpoint}: the check failed, no file is kept: {answer['error']}")
    proof = HeadProof(**answer)
    if not proof.relative_error <= tolerance(quantize):
        raise FileFormatError(f"{checkpoint}: the converted head computes something else, no file is kept: {proof}")
    return proof
