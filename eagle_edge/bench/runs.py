"""One generation timed from outside, with the same clock whoever generates. This module knows no engine.

A rate counts the tokens after the first delivery, over the time since then, so that reading the prompt is no part of
it; ``first_ms`` says what that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ..config import SamplingParams

__all__ = ["Contender", "Prompt", "Run", "Watch"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question, padded or as it is.

    Attributes:
        set: the question set it is of.
        text: the user's message.
        ids: the conversation as this engine reads it.
        context: tokens it was padded to; 0 as it was.
    """

    set: str
    text: str
    ids: list[int]
    context: int = 0


@dataclass(slots=True)
class Run:
    """One answer.

    Attributes:
        n_tokens: generated, an end token included.
        n_first: those of the first delivery.
        first_ms: until then.
        seconds: from then to the last delivery.
        gaps_ms: before each further token; tokens that arrive together have 0 between them.
        text: the answer.
        rounds, draft_n, draft_n_accepted: see ``Stats``; 0 where nothing is known of them.
        offered, accepted: see ``Stats``.
        phases: seconds by phase, where they are known.
        joules: what the processor took, where the machine says it.
    """

    n_tokens: int = 0
    n_first: int = 0
    first_ms: float = 0.0
    seconds: float = 0.0
    gaps_ms: list[float] = field(default_factory=list)
    text: str = ""
    rounds: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    joules: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """After the first delivery; not a number where nothing came after it."""
        later = self.n_tokens - self.n_first
        return later / self.seconds if later > 0 and self.seconds > 0 else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """For a pipe between processes."""
        return asdict(self)


class Watch:
    """Notes when tokens arrive.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self._first = self._last = 0.0
        self.run = Run()

    def deliver(self, n: int, text: str = "") -> None:
        """``n`` tokens are here; with 0, the end that shows as no text."""
        now, run = self._clock(), self.run
        if run.n_tokens == 0:
            self._first, run.n_first, run.first_ms = now, n, (now - self._start) * 1e3
        else:
            run.gaps_ms += [(now - self._last) * 1e3, *([0.0] * (n - 1))][:n]
            run.seconds = now - self._first
        self._last = now
        run.n_tokens += n
        run.text += text


class Contender(Protocol):
    """Somebody who answers."""

    @property
    def name(self) -> str:
        """As the table calls it."""

    def answer(self, prompt: Prompt, params: SamplingParams) -> Run:
        """Generate from empty caches."""

    def close(self) -> None:
        """Free what it holds."""
