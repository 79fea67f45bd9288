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
@given(
    seed=st.integers(0, 2**64 - 1),
    spread=st.sampled_from([0.0, 0.01, 1.0, 4.0, 20.0]),
    n=st.integers(1, 100) | st.just(len(IDS)),
    banned=st.booleans(),
    some=st.booleans(),
)
def test_pruning_changes_nothing(seed: int, spread: float, n: int, banned: bool, some: bool) -> None:
    """The bounded search finds the same winner as the noise of every token, of all tokens or of some."""
    generator = np.random.default_rng(seed)
    ids = np.sort(generator.choice(IDS, n, replace=False)) if some else IDS[:n]
    scores = (generator.standard_normal(n) * spread).astype(np.float32)
    scores -= scores.max()
    if banned:
        scores[np.flatnonzero((generator.random(n) < 0.3) & (scores < 0))] = -np.inf
    key = noise.key(seed, 3)
    assert int(np.argmax(scores + noise.gumbel(key, ids))) == noise.gumbel_argmax(key, ids if some else None, scores)


def test_no_noise_exceeds_its_bound() -> None:
    """Of 64 equally likely tokens the search finds the one with the most noise, whichever they are."""
    scores = np.zeros(64, np.float32)
    for position in range(3):
        key = noise.key(11, position)
        for ids in np.arange(200_000, dtype=np.int32).reshape(-1, 64):
            assert noise.gumbel_argmax(key, ids, scores) == int(np.argmax(noise.gumbel(key, ids)))


def test_shift_and_scale_are_those_of_single_precision() -> None:
    """Logits with their largest one and a temperature give what shifted and divided scores give."""
    generator = np.random.default_rng(0)
    for position in range(200):
        key = noise.key(5, position)
        logits = (generator.standard_normal(len(IDS)) * 3 + 7).astype(np.float32)
        top, temperature = float(logits.max()), float(generator.uniform(0.1, 2.0))
        scores = (logits - np.float32(top)) / np.float32(temperature)
        assert noise.gumbel_argmax(key, None, logits, top, temperature) == noise.gumbel_argmax(key, IDS, scores)


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
