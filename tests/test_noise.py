"""The noise is what it claims to be: a function of its key, uniform, independent, and pruned without a trace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from eagle_edge import noise

IDS = np.arange(4096, dtype=np.int32)


def test_noise_depends_on_its_key_alone() -> None:
    """The noise of a token is the same number in any company, and other seeds, positions and streams differ."""
    whole = noise.gumbel(noise.key(5, 17), IDS)
    some = np.array([4000, 3, 77], np.int32)
    assert np.array_equal(whole[some], noise.gumbel(noise.key(5, 17), some))
    for other in (noise.key(6, 17), noise.key(5, 18), noise.key(5, 17, noise.RESIDUAL)):
        assert not np.any(whole == noise.gumbel(other, IDS))


def test_noise_values_are_pinned() -> None:
    """Texts of a seed stay the same from version to version."""
    drawn = noise.gumbel(noise.key(0, 0), np.array([0, 1, 49151], np.int32))
    assert drawn == pytest.approx([-0.283255517870883, -0.3887936839320317, 1.7566427320226234], rel=1e-12)


def test_uniforms_are_uniform_and_independent() -> None:
    """Over positions, seeds and ids the uniforms are flat, and neighbours are uncorrelated."""
    rows = np.stack([_uniforms(noise.key(seed, position)) for seed in range(8) for position in range(16)])
    assert stats.kstest(rows.ravel(), "uniform").pvalue > 0.001
    n_rows, n_ids = rows.shape
    scaled = np.asarray(np.corrcoef(rows))[~np.eye(n_rows, dtype=bool)] * np.sqrt(n_ids)
    assert scaled.std() == pytest.approx(1, abs=0.05)
    by_id = np.asarray(np.corrcoef(rows[:, :256].T))[~np.eye(256, dtype=bool)] * np.sqrt(n_rows)
    assert by_id.std() == pytest.approx(1, abs=0.05)


def test_uniform_draws_of_one_key_differ() -> None:
    """Numbered draws of one key are different numbers inside (0, 1), and flat over positions."""
    key = noise.key(1, 2, noise.ACCEPT)
    draws = {noise.uniform(key, index) for index in range(100)}
    assert len(draws) == 100
    assert all(0 < draw < 1 for draw in draws)
    many = [
        noise.uniform(noise.key(1, position, noise.ACCEPT), index) for position in range(2000) for index in range(4)
    ]
    assert stats.kstest(many, "uniform").pvalue > 0.001


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), spread=st.sampled_from([0.0, 0.01, 1.0, 4.0, 20.0]), banned=st.booleans())
def test_pruning_changes_nothing(seed: int, spread: float, banned: bool) -> None:
    """The bounded search finds the same winner as the noise of every token."""
    generator = np.random.default_rng(seed)
    scores = (generator.standard_normal(len(IDS)) * spread).astype(np.float32)
    scores -= scores.max()
    if banned:
        scores[generator.integers(1, len(IDS), 2000)] = -np.inf
    key = noise.key(seed, 3)
    assert int(np.argmax(scores + noise.gumbel(key, IDS))) == noise.gumbel_argmax(key, IDS, scores)


def test_no_noise_exceeds_its_bound() -> None:
    """The native words are those of Python's hash, and what they promise holds for every token, closely for most."""
    ids = np.arange(200_000, dtype=np.int32)
    scores = np.linspace(-30, 0, len(ids), dtype=np.float32)
    for position in range(10):
        key = noise.key(11, position)
        words, bounds = noise._bounds(key, ids, scores)
        np.testing.assert_array_equal(words, noise._words(ids, key.coarse))
        above = bounds - (scores + noise.gumbel(key, ids))
        assert above.min() > -1e-4
        assert np.median(above) < 1.5


def _uniforms(key: noise.Key) -> noise.Float64:
    flat: noise.Float64 = np.exp(-np.exp(-noise.gumbel(key, IDS)))
    return flat


def test_rough_noise_is_the_noise_where_it_decides() -> None:
    """Among many tokens the largest noises agree to single precision, and none is infinite."""
    ids = np.arange(200_000, dtype=np.int32)
    for position in range(20):
        key = noise.key(7, position)
        exact, rough = noise.gumbel(key, ids), noise.rough_gumbel(key, ids)
        assert np.isfinite(rough).all()
        largest = np.argsort(-exact)[:1000]
        assert rough[largest] == pytest.approx(exact[largest], abs=2e-3)
        assert int(np.argmax(rough)) == int(np.argmax(exact))
