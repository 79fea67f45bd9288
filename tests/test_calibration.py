"""Chances against how often drafted tokens are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eagle_edge.calibration import HeadCalibration, SuffixCalibration


def trained(truth: Any, n_rounds: int = 600) -> HeadCalibration:
    """A calibration after rounds of three children at two depths, accepted with probability ``truth(p, depth)``."""
    rng = np.random.default_rng(0)
    calibration = HeadCalibration()
    for _ in range(n_rounds):
        said, depth = rng.uniform(0.02, 0.98, 6), [0, 0, 0, 1, 1, 1]
        accepted = rng.random(6) < [truth(p, d) for p, d in zip(said, depth, strict=True)]
        calibration.observe(np.log(said).tolist(), depth, accepted.tolist())
    return calibration


@pytest.mark.parametrize("said", [0.1, 0.5, 0.9])
def test_an_honest_head_is_believed(said: float) -> None:
    """A head that is right as often as it says gets its own probabilities back."""
    assert trained(lambda p, d: p)(np.log([said]), 0)[0] == pytest.approx(said, abs=0.05)


def test_a_useless_head_is_not() -> None:
    """A head that is never right gets next to nothing within twenty rounds, however sure it is."""
    calibration = trained(lambda p, d: 0.0, 20)
    assert calibration(np.log([0.95]), 0)[0] < 0.15
    assert calibration(np.log([0.5]), 1)[0] < 0.05


def test_depths_are_told_apart() -> None:
    """A head that is half as good one level deeper is believed half as much there."""
    calibration = trained(lambda p, d: p if d == 0 else p / 2)
    assert calibration(np.log([0.8]), 0)[0] > 1.5 * calibration(np.log([0.8]), 1)[0]


def test_it_follows_a_change() -> None:
    """After a head was right for long, some hundred failures are enough to distrust it."""
    calibration = trained(lambda p, d: p)
    for _ in range(300):
        calibration.observe([np.log(0.9)] * 2, [0, 1], [False, False])
    assert calibration(np.log([0.9]), 0)[0] < 0.5


def test_chances_grow_with_the_heads_probability() -> None:
    """Even after contradicting data a likelier token never counts less, and extremes stay finite."""
    calibration = trained(lambda p, d: 1 - p, 300)
    chances = np.array(calibration([-np.inf, -30.0, -3.0, -1.0, -1e-9, 0.0], 0))
    assert np.isfinite(chances).all()
    assert (np.diff(chances) >= 0).all()
    assert (chances > 0).all()
    assert (chances < 1).all()


def test_a_calibration_survives_its_json() -> None:
    """What is restored predicts the same; what is none is refused."""
    calibration, again = trained(lambda p, d: p / 3, 50), HeadCalibration()
    again.restore(calibration.to_json())
    assert again(np.log([0.3, 0.7]), 1) == pytest.approx(calibration(np.log([0.3, 0.7]), 1))
    broken = calibration.to_json()
    for state in ({}, {"weights": [1], "precision": [[1]]}, {**broken, "weights": [float("nan")] * 8}):
        with pytest.raises((ValueError, KeyError)):
            again.restore(state)


def test_suffixes_are_judged_by_the_length_of_the_match() -> None:
    """Long matches that keep being right and short ones that are wrong end up far apart."""
    suffixes = SuffixCalibration()
    for _ in range(100):
        suffixes.observe(2, 0, 3)
        suffixes.observe(10, 6, 6)
    assert suffixes(2, 1)[0] < 0.1
    assert np.prod(suffixes(10, 6)) > 0.75


def test_a_suffix_that_is_rejected_says_nothing_of_what_comes_after() -> None:
    """Only tokens whose predecessors were accepted count."""
    suffixes, before = SuffixCalibration(), SuffixCalibration()
    suffixes.observe(4, 1, 8)
    assert suffixes(4, 1)[0] > before(4, 1)[0]
    assert suffixes(5, 1)[0] < before(5, 1)[0]
    assert suffixes(6, 8) == pytest.approx(before(6, 8))


def test_suffix_counts_survive_their_json() -> None:
    """What is restored predicts the same; what cannot be is refused."""
    suffixes, again = SuffixCalibration(), SuffixCalibration()
    suffixes.observe(3, 5, 9)
    again.restore(suffixes.to_json())
    assert again(2, 12) == pytest.approx(suffixes(2, 12))
    with pytest.raises(ValueError, match="impossible"):
        again.restore({"hits": [5.0] * 17, "tries": [1.0] * 17})


@pytest.mark.parametrize("intercept", [-1e6, -1.0, 1e6])
def test_no_weight_ends_a_text(intercept: float) -> None:
    """Whatever weights a file brought, chances are numbers between 0 and 1."""
    calibration = HeadCalibration()
    state = calibration.to_json()
    state["weights"][0] = intercept
    calibration.restore(state)
    assert all(0 <= chance <= 1 for chance in calibration([-87.0, -3.0, -0.5, -1e-6, 0.0], 1))


def test_other_texts_say_little_about_this_one() -> None:
    """After hundreds of hits in other texts, some misses in this one are enough, and do not count in the next."""
    suffixes = SuffixCalibration()
    for _ in range(300):
        suffixes.observe(3, 1, 1)
    suffixes.begin()
    before = suffixes(3, 1)[0]
    for _ in range(8):
        suffixes.observe(3, 0, 1)
    here = suffixes(3, 1)[0]
    suffixes.begin()
    assert before > 0.95
    assert here < 0.55
    assert suffixes(3, 1)[0] > 0.9
