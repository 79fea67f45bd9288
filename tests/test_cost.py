"""Cost curves, in memory and kept in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_edge.cost import CostModel, Curve
from eagle_edge.state import load_state, save_state


def taught(points: dict[int, float], runs: int = 4) -> Curve:
    curve = Curve(64)
    for _ in range(runs):
        for n, ms in points.items():
            curve.observe(n, ms)
    return curve


def test_corners_are_kept() -> None:
    """A step of the kernels stays a step: sizes that were timed cost what they took, however close they lie."""
    curve = taught({1: 5, 4: 6, 5: 9, 8: 9, 9: 12})
    assert [curve.at(n) for n in (1, 4, 5, 8, 9)] == pytest.approx([5, 6, 9, 9, 12])


def test_between_and_beyond_is_a_straight_line() -> None:
    """Sizes never timed lie between their neighbours, and above the largest at the mean slope."""
    curve = taught({2: 4, 4: 8})
    assert [curve.at(n) for n in (3, 5, 64, 100)] == pytest.approx([6, 10, 128, 200], rel=0.01)


def test_one_size_alone_does_not_make_the_others_free() -> None:
    """After one kind of call more rows are expected to cost more, and hoped to cost the same up to twice as many."""
    curve = taught({1: 5})
    assert curve.at(8) > 6
    assert curve.up_to(256, optimistic=True)[2] == pytest.approx(5)
    assert curve.up_to(256, optimistic=True)[3] > 5


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.01, 100)), min_size=1, max_size=60))
def test_more_rows_never_cost_less(calls: list[tuple[int, float]]) -> None:
    """Whatever was measured, the curve is non-decreasing and hope is never above expectation."""
    curve = Curve(64)
    for n, ms in calls:
        curve.observe(n, ms)
    expected, hoped = np.array(curve.up_to(64)), np.array(curve.up_to(64, optimistic=True))
    assert (np.diff(expected[1:]) >= -1e-9).all()
    assert (hoped[1:] <= expected[1:] + 1e-9).all()
    assert expected[1] > 0


def test_a_busy_machine_scales_the_whole_curve() -> None:
    """When calls of one size take twice as long, all sizes are expected to; and back again when it is over."""
    curve = taught({1: 5.0, 8: 10.0}, 20)
    for _ in range(16):
        curve.observe(1, 10.0)
    assert curve.busy > 1.6
    assert curve.at(8) == pytest.approx(20, rel=0.2)
    for _ in range(16):
        curve.observe(8, 10.0)
    assert curve.at(1) == pytest.approx(5, rel=0.35)


def test_one_slow_call_changes_little() -> None:
    """A call a hundred times as slow as usual is forgotten within twenty others."""
    curve = taught({1: 5.0}, 64)
    curve.observe(1, 500.0)
    for _ in range(20):
        curve.observe(1, 5.0)
    assert curve.at(1) == pytest.approx(5, rel=0.06)


def test_impossible_measures_are_ignored() -> None:
    """No rows, too many, no time, or no number leave the curve as it was."""
    curve = Curve(8)
    for n, ms in ((0, 1.0), (9, 1.0), (3, 0.0), (3, -1.0), (3, float("nan"))):
        curve.observe(n, ms)
    assert curve.is_empty


def test_another_number_of_threads_starts_from_the_nearest() -> None:
    """A curve for one thread begins as that for two and soon follows its own calls, at every size."""
    model = CostModel()
    for n, ms in ((1, 5.0), (8, 10.0)):
        for _ in range(20):
            model.at(2).verify.observe(n, ms)
    assert model.at(1).verify.at(8) == pytest.approx(10)
    for _ in range(9):
        model.at(1).verify.observe(1, 9.0)
    assert model.at(1).verify.at(8) == pytest.approx(18, rel=0.25)
    assert model.at(2).verify.at(8) == pytest.approx(10)


def test_the_first_evaluation_of_a_text_teaches_nothing() -> None:
    """It builds a graph, which takes as long as several rows; the one after it counts."""
    costs = CostModel().at(1)
    for ms in (9.0, 3.0, 3.0, 3.0):
        costs.verified(1, ms)
    costs.begin()
    costs.verified(1, 9.0)
    assert costs.verify.at(1) == pytest.approx(3.0)
    costs.verified(1, 3.6)
    assert costs.verify.at(1) > 3.2


@pytest.mark.parametrize("usual", [(1, 20, 6), (1, 1, 1), (1, 8, 8)])
@pytest.mark.parametrize(
    ("cold", "growth", "burst"), [(1.3, 0.0, 1.0), (1.0, 0.2, 1.0), (1.0, 0.0, 0.5), (1.0, 0.0, 2.0)]
)
def test_sizes_keep_their_proportions(cold: float, growth: float, burst: float, usual: tuple[int, int, int]) -> None:
    """However texts begin, grow and are disturbed, sizes seen all the time do not drift away from the others."""
    rng, curve, true = np.random.default_rng(0), taught({1: 2.9, 2: 3.3, 3: 3.7, 6: 4.9}), [0, 2.9, 3.3, 3.7]
    for _ in range(200):
        curve.begin()
        for i, n in enumerate(rng.choice(3, 100, p=np.array(usual) / sum(usual)) + 1):
            load = (cold if i < 6 else 1) * (1 + growth * i / 100) * (burst if 40 <= i < 50 else 1)
            curve.observe(int(n), true[n] * load * np.exp(rng.normal(0, 0.05)))
    assert curve.at(6) / curve.at(2) == pytest.approx(4.9 / 3.3, rel=0.25)


def test_what_has_not_been_seen_for_long_is_hoped_to_have_become_cheap() -> None:
    """The longer ago the more, but never cheaper than a lone row; a fresh call ends the hope."""
    curve = taught({1: 3.0, 2: 3.5, 8: 9.0}, 20)
    hopes = []
    for calls in (100, 2000, 30_000):
        for _ in range(calls):
            curve.observe(2, 3.5)
        hopes.append(curve.up_to(8, optimistic=True)[8] / curve.at(8))
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[0] > 0.9
    assert hopes[1] < 0.8
    assert curve.up_to(8, optimistic=True)[8] >= curve.at(1)
    for _ in range(40):
        curve.observe(8, 9.0)
    assert curve.up_to(8, optimistic=True)[8] > 0.95 * curve.at(8)


def test_sizes_do_not_pay_for_an_accident() -> None:
    """Two late calls in a row look like a busy machine; once it is over, every size costs what it did."""
    costs = CostModel().at(1)
    for _ in range(20):
        for n, ms in ((1, 3.0), (2, 3.5), (4, 5.0)):
            costs.verified(n, ms)
    for ms in (9.0, 9.0, *([3.5] * 60)):
        costs.verified(2, ms)
    for n, ms in ((1, 3.0), (2, 3.5), (4, 5.0)):
        assert costs.verify.at(n) == pytest.approx(ms, rel=0.05)


def test_what_was_learnt_survives_a_file(tmp_path: Path) -> None:
    """Costs read back from the cache are those that were saved."""
    model, again = CostModel(), CostModel()
    for n, ms in ((1, 5.0), (4, 6.0), (5, 9.0)):
        model.at(2).verify.observe(n, ms)
        model.at(2).level.observe(n, ms / 5)
    path = tmp_path / "deep" / "learnt.json"
    save_state(path, model.to_json())
    again.restore(load_state(path))
    for n in (1, 4, 5, 7):
        assert again.at(2).verify.at(n) == pytest.approx(model.at(2).verify.at(n))
        assert again.at(2).level.at(n) == pytest.approx(model.at(2).level.at(n))
    assert [entry.name for entry in path.parent.iterdir()] == ["learnt.json"]


@pytest.mark.parametrize(
    "state",
    [
        {"2": {}},
        {"two": {"verify": [], "extend": [], "level": []}},
        {"2": {"verify": [[1, -5, 3]], "extend": [], "level": []}},
        {"2": {"verify": [[999, 5, 3]], "extend": [], "level": []}},
        {"2": {"verify": [[1, "x", 3]], "extend": [], "level": []}},
        {"2": {"verify": 7, "extend": [], "level": []}},
        {"2": 3},
    ],
)
def test_a_foreign_state_is_refused(state: dict[str, object]) -> None:
    """Points that cannot be raise one of the errors that the reader expects."""
    with pytest.raises((ValueError, TypeError, KeyError, IndexError)):
        CostModel().restore(state)


def test_brief_calls_cost_their_mean() -> None:
    """Of brief calls the rare accident is part of the price; of long ones it is the load's, and hardly counts."""
    brief, long = Curve(8, brief=True), Curve(8)
    for call in range(400):
        ms = 10.0 if call % 10 == 9 else 1.0
        brief.observe(1, ms)
        long.observe(1, ms)
    assert brief.at(1) == pytest.approx(1.9, rel=0.25)
    assert long.at(1) < 1.3
    assert brief.busy == 1.0
