"""How the time of a run is split: what it has used over all its processes, what was measured, and the plan from both.

A head learns from the tokens it visits. Up to about four visits of one token teach nearly as much as new tokens do, so
the time is split such that answers are visited two to four times: more often where answering is the slow part.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Clock", "Plan", "Spent", "duration", "plan"]

MIN_VISITS, MAX_VISITS = 2.0, 4.0
# What export, evaluation, plots and card may take: a share of the budget within bounds.
FINISH_SHARE, FINISH_SECONDS = 0.06, (10.0, 90.0)
SAVE_SECONDS = 2.0


@dataclass(slots=True)
class Spent:
    """What a run's clock keeps on disk.

    Attributes:
        seconds: of work so far.
        answer_seconds: of them for prompts and answers.
        training_speed: answer tokens a second, measured before the answers are complete; 0 = not yet.
    """

    seconds: float = 0.0
    answer_seconds: float = 0.0
    training_speed: float = 0.0


class Clock:
    """The time a run has worked, over all its processes; a kill loses at most ``SAVE_SECONDS`` of it.

    Args:
        folder: of the run.
        budget: seconds for the whole run; 0 = as long as it takes.
        started: ``time.monotonic()`` when this process began to work on it.
    """

    def __init__(self, folder: Path, budget: float, started: float) -> None:
        self.path, self.budget = folder / "clock.json", budget
        try:
            self.spent = Spent(**json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            self.spent = Spent()
        self._latest = started
        self._saved = -math.inf

    def tick(self, answering: bool = False) -> None:
        """Count the time since the last tick."""
        now = time.monotonic()
        self.spent.seconds += now - self._latest
        self.spent.answer_seconds += (now - self._latest) * answering
        self._latest = now
        if now - self._saved > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what was spent."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self.spent)), encoding="utf-8")
        os.replace(partial, self.path)
        self._saved = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds of the budget that are left, never less than 0; infinite without one."""
        return max(0.0, self.budget - self.spent.seconds) if self.budget > 0 else math.inf

    @property
    def finish_seconds(self) -> float:
        """What is kept for export and evaluation."""
        return min(max(FINISH_SHARE * self.budget, FINISH_SECONDS[0]), FINISH_SECONDS[1])


@dataclass(frozen=True, slots=True)
class Plan:
    """What fits into the time that is left: answer tokens in all, and how often training visits each."""

    answer_tokens: int
    visits: float
    answer_seconds: float
    training_seconds: float
    finish_seconds: float

    def line(self) -> str:
        """The plan in one line."""
        return (
            f"{duration(self.answer_seconds)} more of answers ({self.answer_tokens:,} tokens in all), "
            f"{duration(self.training_seconds)} of training ({self.visits:.1f} visits a token), "
            f"{duration(self.finish_seconds)} for export and evaluation"
        )


def plan(clock: Clock, n_tokens: int) -> Plan:
    """Split what is left of the budget, given the ``n_tokens`` answered so far and the speeds measured on the way."""
    answering = n_tokens / max(clock.spent.answer_seconds, 1e-6)
    training = clock.spent.training_speed
    visits = min(max(3.0 * math.sqrt(training / answering), MIN_VISITS), MAX_VISITS)
    left = max(0.0, clock.left - clock.finish_seconds)
    more = max(0.0, (left - n_tokens * visits / training) / (1 / answering + visits / training))
    total = n_tokens + more
    answer_seconds = more / answering
    training_seconds = max(0.0, left - answer_seconds)
    return Plan(int(total), training_seconds * training / total, answer_seconds, training_seconds, clock.finish_seconds)


def duration(seconds: float) -> str:
    """A time for people: 40 s, 3.5 min, 2.1 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
