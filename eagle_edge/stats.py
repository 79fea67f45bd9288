"""What a generation did: counts, times and acceptance, with the definitions used everywhere.

``rounds`` are target evaluations after prefill, ``draft_n`` the drafted nodes they verified, ``draft_n_accepted`` the
ones kept; generated tokens = rounds + draft_n_accepted, less what a stop cut off;
tau = (draft_n_accepted + rounds) / rounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from .tree import Tree

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """Counts and times of one generation.

    Attributes:
        prompt_n: tokens of the prompt; ``reused_n`` of them were still in the cache.
        generated_n: tokens kept, an end token included.
        rounds, draft_n, draft_n_accepted: see the module.
        offered: by depth - 1, rounds whose accepted path could go on to that depth because the tree did.
        accepted: by depth - 1, rounds whose accepted path did.
        seconds: by phase: prefill, draft, verify (the target), other (Python, sampling, text); the caller's time
            between two steps is not counted.
        head_error: why the head was given up in the middle of it, or None.
        gaps_ms: milliseconds before each token; the tokens of one round arrive together.
    """

    prompt_n: int = 0
    reused_n: int = 0
    generated_n: int = 0
    rounds: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prefill", "draft", "verify", "other"), 0.0)
    )
    gaps_ms: list[float] = field(default_factory=list)
    head_error: str | None = None
    _spent_before: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens per target evaluation, bonus included; 1 without drafting, 0 before the first round."""
        return (self.draft_n_accepted + self.rounds) / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the time after prefill."""
        spent = sum(self.seconds.values()) - self.seconds["prefill"]
        return self.generated_n / spent if spent > 0 else 0.0

    @property
    def accept_by_depth(self) -> list[float]:
        """By depth - 1, the share of offered continuations that were accepted."""
        return [accepted / offered for accepted, offered in zip(self.accepted, self.offered, strict=True) if offered]

    def timed(self, phase: str) -> _Timer:
        """Adds the time of the block to ``seconds[phase]``."""
        return _Timer(self.seconds, phase)

    def count_round(self, tree: Tree, path: tuple[int, ...], seconds: float) -> None:
        """Count one verified tree of which ``path``, root excluded, was accepted, and the time it all took."""
        spent = self.seconds["draft"] + self.seconds["verify"]
        self.seconds["other"] += max(0.0, seconds - (spent - self._spent_before))
        self._spent_before = spent
        self.gaps_ms += [seconds * 1e3, *([0.0] * len(path))]
        self.rounds += 1
        self.draft_n += len(tree) - 1
        self.draft_n_accepted += len(path)
        has_child = set(tree.parent.tolist())
        for depth, node in enumerate((0, *path)):
            if node not in has_child:
                break
            if depth == len(self.offered):
                self.offered.append(0)
                self.accepted.append(0)
            self.offered[depth] += 1
            self.accepted[depth] += depth < len(path)

    def as_dict(self) -> dict[str, Any]:
        """The figures every ``--json`` reports."""
        return {
            "prompt_n": self.prompt_n,
            "generated_n": self.generated_n,
            "rounds": self.rounds,
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
            "tau": round(self.tau, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "seconds": {phase: round(seconds, 4) for phase, seconds in self.seconds.items()},
        }


class _Timer:
    """Adds the time of a block to a phase; several times as fast as a generator, eight times a token."""

    __slots__ = ("_phase", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self._seconds[self._phase] += time.perf_counter() - self._start
