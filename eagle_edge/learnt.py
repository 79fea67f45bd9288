"""What drafting taught, kept between runs: per model, head, machine, threads and kernels."""

from __future__ import annotations

import os

from .cost import load_state, save_state, state_file
from .drafter import Drafter
from .kernels import kernel_path
from .probe import probe
from .target import Target

__all__ = ["Learnt"]


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
        self._policy = drafter.policy
        facts = {"kernels": kernel_path(), "params": repr(target.params)}
        files = {"target": target.path, "head": None if head is None else os.fspath(head)}
        self.path = state_file(facts, files)
        self._policy.restore(load_state(self.path))
        probe(self._policy.costs.at(target.params.n_threads), target, drafter.draft)

    def save(self) -> None:
        """Keep what is known now."""
        if self._policy.n_rounds > 0:
            save_state(self.path, self._policy.to_json())
