"""Our engine as a contender."""

from __future__ import annotations

from ..config import DraftParams, SamplingParams
from ..engine import Engine
from ..kernels import settle_weights
from .runs import Prompt, Run, Watch

__all__ = ["Ours"]

_SETTLING_S = 60.0  # that the weights may take, at most, before an answer is timed


class Ours:
    """Our engine with one way to draft.

    Args:
        name: as the table calls it.
        engine: may be shared.
        draft: the tree.
    """

    def __init__(self, name: str, engine: Engine, draft: DraftParams) -> None:
        self.name = name
        self._engine, self._draft = engine, draft
        settle_weights(_SETTLING_S)

    def answer(self, prompt: Prompt, params: SamplingParams) -> Run:
        """Generate from empty caches."""
        engine = self._engine
        engine.reset()
        watch = Watch()
        for step in engine.generate(prompt.ids, params, self._draft):
            watch.deliver(len(step.token_ids), step.text)
        run, stats = watch.run, engine.stats
        run.rounds, run.draft_n, run.draft_n_accepted = stats.rounds, stats.draft_n, stats.draft_n_accepted
        run.offered, run.accepted = stats.offered, stats.accepted
        run.phases = {phase: seconds for phase, seconds in stats.seconds.items() if phase != "prefill"}
        return run

    def close(self) -> None:
        """The engine stays open; it is shared."""
