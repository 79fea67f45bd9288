"""Drafted text against plain text, token by token: the proof that a head changes nothing but the speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .config import DraftParams, SamplingParams
from .engine import Engine
from .tree import chain

__all__ = ["Mismatch", "compare"]

PLAIN = DraftParams(total=1)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where a drafted text left the plain one.

    Attributes:
        set, number: the question.
        position: of the first differing token among the generated ones.
        plain, drafted: the tokens there; -1 past the end of a text.
        top2_gap: the difference of the two best plain logits there; a tiny one tells rounding from a fault.
    """

    set: str
    number: int
    position: int
    plain: int
    drafted: int
    top2_gap: float

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def compare(
    engine: Engine, question: tuple[str, int], ids: Sequence[int], params: SamplingParams
) -> tuple[int, Mismatch | None]:
    """Tokens compared and the first mismatch of one prompt, generated plainly and drafted from empty caches."""
    engine.reset()
    plain = engine.complete(ids, params, PLAIN).token_ids
    engine.reset()
    drafted = engine.complete(ids, params).token_ids
    if plain == drafted:
        return len(plain), None
    at = next(
        (i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b), min(len(plain), len(drafted))
    )
    gap = _top2_gap(engine, [*ids, *plain[:at]])
    pick = [text[at] if at < len(text) else -1 for text in (plain, drafted)]
    return at, Mismatch(*question, at, pick[0], pick[1], gap)


def _top2_gap(engine: Engine, ids: list[int]) -> float:
    """The gap between the two best logits after ``ids``."""
    engine.reset()
    target = engine.target
    for start in range(0, len(ids) - 1, target.n_prefill):
        target.prefill(ids[start : min(start + target.n_prefill, len(ids) - 1)])
    second, best = np.sort(target.eval_tree(chain(ids[-1], np.empty(0, np.int32))).logits(0))[-2:]
    target.rewind(0)
    return float(best - second)
