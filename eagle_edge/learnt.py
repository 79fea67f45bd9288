"""What drafting taught, kept between runs: per model, head, machine, threads and kernels."""

from __future__ import annotations

import os

from .drafter import Drafter
from .kernels import kernel_path, settle_weights
from .probe import WIDEST, probe, time_trees
from .state import load_state, save_state, state_file
from .target import Target

__all__ = ["Learnt"]

_SETTLING_S = 2.0  # that the weights of an unknown target may take, at most, before it is timed


class Learnt:
    """Gives a drafter what earlier runs learnt, or a few measurements where there is nothing yet.

    Args:
        drafter: of the engine.
        target: empty.
        head: the head's file, or None.

    Attributes:
        path: the file.
    """

    def __init__(self, drafter: Drafter, target: Target, head: str | os.PathLike[str] | None) -> None:
        self._policy, self._target = drafter.policy, target
        facts = {"kernels": kernel_path(), "params": repr(target.params)}
        files = {"target": target.path, "head": None if head is None else os.fspath(head)}
        self.path = state_file(facts, files)
        state = load_state(self.path)
        known = self._policy.restore(state)
        self._settled = bool(state.get("settled")) if known else settle_weights(_SETTLING_S)
        probe(self._policy.costs.at(target.params.n_threads), target, drafter.draft)

    def refresh(self) -> None:
        """Before a text: time the target again where it was timed before its weights had their large pages."""
        target = self._target
        if self._settled or not target.can_branch or target.n_past + WIDEST > target.n_ctx:
            return
        if target.n_threads == target.params.n_threads and settle_weights(0.0):
            time_trees(self._policy.costs.at(target.n_threads), target)
            self._settled = True

    def save(self) -> None:
        """Keep what is known now."""
        if self._policy.n_rounds > 0:
            save_state(self.path, {**self._policy.to_json(), "settled": self._settled})
