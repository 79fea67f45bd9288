from __future__ import annotations

import pytest

from eagle_edge import threads
from eagle_edge.threads import Governor


class Machine:
    """Four processors of which ``others`` are busy with other programs, and ``own`` with ours."""

    def __init__(self) -> None:
        self.now = self.own = self.busy = 0.0

    def run(self, seconds: float, own: float, others: float) -> None:
        self.now += seconds
        self.own += own * seconds
        self.busy += min(4.0, own + others) * seconds

    def governor(self, n_threads: int = 4) -> Governor:
        return Governor(n_threads, lambda: self.now, lambda: self.own, lambda: self.busy)


@pytest.fixture(autouse=True)
def _four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "allowed_cpus", lambda: {0, 1, 2, 3})


@pytest.mark.parametrize(("others", "n_threads"), [(0.0, 4), (0.3, 4), (0.9, 3), (2.1, 2), (3.0, 1), (9.0, 1)])
def test_threads_leave_busy_processors_alone(others: float, n_threads: int) -> None:
    """As many threads as processors are free, and at least one."""
    machine = Machine()
    governor = machine.governor()
    machine.run(0.3, own=4 - min(4, others), others=others)
    assert governor.choose() == n_threads


def test_threads_come_back_when_the_neighbour_leaves() -> None:
    """The recommendation follows the last quarter of a second, and not a single moment."""
    machine = Machine()
    governor = machine.governor()
    machine.run(0.3, own=2, others=2)
    assert governor.choose() == 2
    machine.run(0.1, own=2, others=0)
    assert governor.choose() == 2
    machine.run(0.2, own=2, others=0)
    assert governor.choose() == 4


def test_a_machine_that_says_nothing_keeps_the_threads() -> None:
    """Where the kernel gives no figures the wish is the recommendation."""

    def nothing() -> float:
        raise FileNotFoundError("/proc/stat")

    governor = Governor(3, busy_cpu=nothing)
    assert governor.choose() == 3
