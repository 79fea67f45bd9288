"""Calls of a head whose time is simulated, and what is learnt from them."""

from __future__ import annotations

import numpy as np
import pytest
from simulation import SimulatedHead, Text

from eagle_edge.asking import USUAL_PAIRS, Asking, Listener
from eagle_edge.backlog import Backlog
from eagle_edge.cost import CostModel
from eagle_edge.replay import Machine
from eagle_edge.round import Round


class Asked:
    """A head, asked in the rounds that ``ask`` names, whose reading takes ``ms`` a pair."""

    def __init__(self) -> None:
        self.ms = 2.0
        self.machine = Machine(lambda n: 5.0, extend=lambda n: self.ms * n, level=lambda n: 0.5 * n)
        self.costs = CostModel()
        self.asking = Asking(self.costs, self.machine.clock)
        self.head = SimulatedHead(Text(), self.machine)
        self.n_pairs = 0

    def ask(self, at: int, n_pairs: int = 1) -> Round:
        this, backlog = Round(), Backlog(self.head)
        backlog.add(self.n_pairs, [1] * n_pairs, np.zeros((n_pairs, 1), np.float32))
        self.n_pairs += n_pairs
        said = self.asking.read(this, at, Listener(self.head, backlog))
        assert said == (self.head.first[0].tolist(), self.head.first[1].tolist())
        return this

    @property
    def extend_ms(self) -> float:
        return self.costs.at(1).extend.at(1)


def test_a_cold_head_says_nothing_about_a_warm_one() -> None:
    """What a call takes after rounds without any is no cost of asking in every round."""
    asked = Asked()
    for at in range(10):
        asked.ask(at)
    asked.ms = 20.0
    for at in range(12, 92, 2):
        this = asked.ask(at)
        assert not asked.asking.is_warm
        assert this.head_ms == pytest.approx(20)  # it was spent all the same
    assert asked.extend_ms == pytest.approx(2)
    for at in range(91, 131):
        asked.ask(at)
        assert asked.asking.is_warm
    assert asked.extend_ms > 5


def test_what_piles_up_is_not_charged_to_the_round_that_reads_it() -> None:
    """Pairs that piled up are read some time anyway; a round is expected to take what the usual few take."""
    asked = Asked()
    for at in range(1, 6):
        asked.ask(at, at)
    this = asked.ask(6, 40)
    assert this.draft_ms == asked.costs.at(1).extend.at(USUAL_PAIRS)
    assert this.head_ms == pytest.approx(40 * 2)


def test_levels_take_what_lies_between_them_too() -> None:
    """A level begins where the call before it ended: choosing what to evaluate is part of its cost."""
    asked = Asked()
    this = asked.ask(0)
    level = asked.asking.level(this, asked.head)
    for parents in (-1, 0):
        asked.machine.spend(1.0)
        level(np.array([3], np.int32), np.array([parents], np.int32), 2)
    assert this.n_levels == 2
    assert asked.costs.at(1).level.at(1) == pytest.approx(1.5)
    assert this.head_ms == pytest.approx(2 + 2 * 1.5)
