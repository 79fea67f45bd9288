"""What is seen of a head while it is trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["EVALUATED_STEPS", "TREE_WIDTH", "Acceptance", "Best", "Report"]

EVALUATED_STEPS = 6
TREE_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Acceptance:
    """On held-out passages with teacher-forced tokens, by depth: how often the target's choice is proposed.

    Attributes:
        first: [steps] as the first candidate, which is what a chain accepts.
        among: [steps] among the first ``TREE_WIDTH`` candidates.
    """

    first: tuple[float, ...]
    among: tuple[float, ...]

    def chain_tau(self) -> float:
        """Tokens per target evaluation of a chain as deep as was measured, if depths were independent."""
        return 1.0 + float(np.cumprod(self.first).sum())


@dataclass(frozen=True, slots=True)
class Report:
    """One line of progress: ``acceptance`` is None between evaluations, ``done`` is the share of the run."""

    step: int
    tokens: int
    seconds: float
    loss: float
    done: float
    acceptance: Acceptance | None


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far: its chain's tau, its step, and how many evaluations since were no better."""

    tau: float = 0.0
    step: int = -1
    stale: int = 0
