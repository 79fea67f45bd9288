"""Whether to guess with the target's noise."""

from __future__ import annotations

import numpy as np
import pytest

from eagle_edge.same_noise import SameNoise


@pytest.mark.parametrize(("plain", "noisy"), [(0.7, 0.5), (0.5, 0.7)])
def test_the_way_that_guesses_better_is_taken(plain: float, noisy: float) -> None:
    """After some hundred rounds the clearly better way is taken mostly, and the other is still tried."""
    rng, choice = np.random.default_rng(0), SameNoise()
    taken = []
    for _ in range(800):
        taken.append(choice.chooses())
        choice.note(taken[-1], bool(rng.random() < (noisy if taken[-1] else plain)))
    share = np.mean([way is (noisy > plain) for way in taken[-400:]])
    assert 0.7 < share < 0.95


def test_what_was_learnt_is_kept_and_foreign_states_are_refused() -> None:
    """A restored choice is the same; shares that are none raise."""
    choice, again = SameNoise(), SameNoise()
    for _ in range(100):
        choice.note(True, False)
    again.restore(choice.to_json())
    assert again.chooses() is choice.chooses() is False
    again.note(True, True)  # one round weighs no more than it did before
    choice.note(True, True)
    assert again.to_json() == choice.to_json()
    for state in ([2.0, 0.1], [0.1], ["x", "y"], [[2.0, 9], [0.1, 9]], [[0.2, 0], [0.1, 9]], [[0.2, 9]]):
        with pytest.raises((ValueError, TypeError)):
            again.restore(state)


def test_the_noise_is_left_out_only_where_it_is_clearly_worse() -> None:
    """Two ways about as good: the noise is kept, however the shares happen to run."""
    rng, choice = np.random.default_rng(1), SameNoise()
    taken = []
    for _ in range(2000):
        taken.append(choice.chooses())
        choice.note(taken[-1], bool(rng.random() < (0.35 if taken[-1] else 0.3)))
    assert np.mean(taken) > 0.85
