"""Sampling: every filter against a slow obvious one, penalties against a dictionary, noise against nothing."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from eagle_edge.config import SamplingParams
from eagle_edge.errors import NativeError, NoTokenLeftError
from eagle_edge.filters import Candidates, filtered
from eagle_edge.sampling import Sampler, logprobs

Float32 = npt.NDArray[np.float32]


def random_logits(seed: int, n_vocab: int = 16, spread: float = 2.0, ties: bool = False) -> Float32:
    values = np.random.default_rng(seed).standard_normal(n_vocab) * spread
    return (np.round(values) if ties else values).astype(np.float32)


def kept(logits: Float32, temperature: float = 1.0, **filters: float) -> Candidates:
    return filtered(logits, float(logits.max()), temperature, **filters)  # type: ignore[arg-type]


class Only:
    """A constraint that allows a fixed set of tokens."""

    def __init__(self, n_vocab: int, allowed: set[int]) -> None:
        self.allowed = np.isin(np.arange(n_vocab), list(allowed))
        self.accepted: list[int] = []

    def mask(self) -> npt.NDArray[np.bool_]:
        return self.allowed

    def accept(self, token: int) -> None:
        self.accepted.append(token)


# -- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "warm"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -1),
        ("repeat_penalty", 0),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("penalty_last_n", -2),
        ("logit_bias", [1]),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: math.nan}),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("grammar", ""),
        ("json_schema", "{"),
        ("json_schema", 3),
        ("n_logprobs", -1),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("stop", ("",)),
        ("stop", (3,)),
        ("stop_token_ids", (-1,)),
        ("rule", "hope"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: object) -> None:
    """A value out of range is a ValueError that names the parameter and shows the value."""
    with pytest.raises(ValueError, match=name) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert "use" in str(caught.value) or "JSON" in str(caught.value)


def test_grammar_and_schema_exclude_each_other() -> None:
    """One text cannot follow two grammars."""
    with pytest.raises(ValueError, match="both"):
        SamplingParams(grammar='root ::= "a"', json_schema="{}")


def test_one_stop_string_needs_no_tuple() -> None:
    """A lone string is one stop string, not its letters."""
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_ids_outside_the_vocabulary_are_refused() -> None:
    """Bias and stop tokens are checked against the vocabulary when it is known."""
    for params in (SamplingParams(logit_bias={16: 1.0}), SamplingParams(stop_token_ids=(16,))):
        with pytest.raises(ValueError, match="token id 16"):
            Sampler(params, 16)


def test_a_seed_is_drawn_once_and_reported() -> None:
    """Without a seed two samplers differ, and each can be repeated from the seed it reports."""
    first, second = Sampler(SamplingParams(), 16), Sampler(SamplingParams(), 16)
    assert first.seed != second.seed
    again = Sampler(SamplingParams(seed=first.seed), 16)
    assert first.seed == again.seed


# -- filters ----------------------------------------------------------------------------------------------------------


SIZES = st.sampled_from([1, 2, 5, 40, 700, 5000])
SPREADS = st.sampled_from([0.1, 2.0, 30.0])  # from all alike to one that has everything


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), size=SIZES, spread=SPREADS, k=st.integers(1, 60) | st.just(3000), ties=st.booleans())
def test_top_k_keeps_the_k_best(seed: int, size: int, spread: float, k: int, ties: bool) -> None:
    """Top-k equals a stable sort; of equal scores the lowest ids stay."""
    logits = random_logits(seed, size, spread, ties)
    best_first = sorted(range(size), key=lambda token: (-logits[token], token))
    found = kept(logits, top_k=k)
    assert sorted(best_first[:k]) == found.ids.tolist()
    assert np.array_equal(found.scores, logits[found.ids] - logits.max())


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 40, 5000]),
    spread=SPREADS,
    top_p=st.floats(0.01, 1, exclude_max=True) | st.sampled_from([0.95, 0.999]),
    k=st.sampled_from([0, 7, 300]),
    ties=st.booleans(),
)
def test_top_p_keeps_the_fewest_that_suffice(
    seed: int, size: int, spread: float, top_p: float, k: int, ties: bool
) -> None:
    """The kept tokens are the best of what top-k left, reach top_p of it, and would not without the last of them."""
    logits = random_logits(seed, size, spread, ties)
    best_first = sorted(range(size), key=lambda token: (-logits[token], token))[: k or size]
    p = np.exp(logits[best_first].astype(np.float64) - logits.max())
    p /= p.sum()
    ids = kept(logits, top_p=top_p, top_k=k).ids
    assert sorted(best_first[: len(ids)]) == ids.tolist()
    assert p[: len(ids)].sum() >= top_p - 1e-6
    assert len(ids) == 1 or p[: len(ids) - 1].sum() < top_p + 1e-6


@given(seed=st.integers(0, 2**32), size=SIZES, spread=SPREADS, min_p=st.floats(0.0001, 1))
def test_min_p_is_relative_to_the_best(seed: int, size: int, spread: float, min_p: float) -> None:
    """A token stays when it is at least min_p times as probable as the best one."""
    logits = random_logits(seed, size, spread)
    ratio = np.exp(logits.astype(np.float64) - logits.max())
    ids = set(kept(logits, min_p=min_p).ids.tolist())
    assert set(np.flatnonzero(ratio >= min_p * (1 + 1e-5)).tolist()) <= ids
    assert ids <= set(np.flatnonzero(ratio >= min_p * (1 - 1e-5)).tolist())


@pytest.mark.parametrize("filters", [{}, {"top_k": 600}, {"top_p": 0.9999999}, {"min_p": 1e-30}])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 50.0])
def test_banned_tokens_are_never_kept(filters: dict[str, float], temperature: float) -> None:
    """What has no chance at all is no candidate, however much the filters would keep."""
    logits = random_logits(1, 700)
    logits[::3] = -np.inf
    found = kept(logits, temperature, **filters)
    assert np.all(found.ids % 3 > 0)
    assert np.all(np.diff(found.ids) > 0)
    if temperature == 50:
        assert len(found.ids) >= 0.99 * np.isfinite(logits).sum()


def test_top_p_adds_up_to_single_precision() -> None:
    """Where thousands of tokens are about as likely, top-p still ends at the right one."""
    groups = np.repeat(np.array([0, -0.34, -1.0, -3.3], np.float32), [1, 50_000, 50_000, 50_000])
    weights = np.exp(groups.astype(np.float64))
    for wanted in (20_000, 70_000, 130_000):
        top_p = (weights[: wanted - 1].sum() + weights[wanted - 1] / 2) / weights.sum()
        assert kept(groups, top_p=top_p).ids.tolist() == list(range(wanted))


def test_more_than_there_is_can_be_asked_for() -> None:
    """Any number of tokens may be kept or reported; a vocabulary has no more than it has."""
    logits = random_logits(5)
    assert len(kept(logits, top_k=10**12).ids) == 16
    assert len(logprobs(logits, 3, 10**12).top) == 16
    Sampler(SamplingParams(temperature=1.0, top_k=10**12), 16).pick(logits, 0)


def test_the_order_is_temperature_top_k_top_p_min_p() -> None:
    """Top-p sees the temperature and only what top-k left; min-p comes last."""
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(SamplingParams(temperature=2.0, top_k=3, top_p=0.7, min_p=0.9), 4)
    # sqrt of the probabilities, three kept: 0.43, 0.33, 0.24; top-p 0.7 keeps two, min-p 0.9 the best one only
    assert sampler.process(logits).ids.tolist() == [0]
    wider = Sampler(SamplingParams(temperature=2.0, top_k=3, top_p=0.7, min_p=0.5), 4)
    assert wider.process(logits).ids.tolist() == [0, 1]
    assert wider.process(logits).probabilities() == pytest.approx(
        np.sqrt([0.5, 0.3]) / np.sqrt([0.5, 0.3]).sum(), rel=1e-5
    )


# -- penalties, bias, grammar -----------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    text=st.lists(st.integers(0, 15), max_size=40),
    prompt_length=st.integers(0, 40),
    window=st.sampled_from([-1, 0, 1, 5, 64]),
    repeat=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0.0, 0.5]),
    frequency=st.sampled_from([0.0, 0.25]),
)
def test_penalties_equal_the_obvious_way(
    seed: int, text: list[int], prompt_length: int, window: int, repeat: float, presence: float, frequency: float
) -> None:
    """Counting tokens as they come equals counting the window anew for every choice."""
    params = SamplingParams(
        temperature=1.0,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
        penalty_last_n=window,
    )
    sampler = Sampler(params, 16, prompt_ids=text[:prompt_length])
    for token in text[prompt_length:]:
        sampler.accept(token)
    logits = random_logits(seed)
    expected = logits.astype(np.float64)
    in_window = text if window < 0 else text[len(text) - min(window, len(text)) :]
    for token, count in Counter(in_window).items():
        value = expected[token] * repeat if expected[token] <= 0 else expected[token] / repeat
        expected[token] = value - count * frequency - presence
    before = logits.copy()
    assert sampler.process(logits).scores == pytest.approx(expected - expected.max(), abs=1e-5)
    assert np.array_equal(before, logits)


def test_a_banned_token_never_appears() -> None:
    """A bias of -inf removes the token at any temperature; a large bias forces one."""
    logits = random_logits(1)
    best = int(logits.argmax())
    for temperature in (0.0, 5.0):
        banned = Sampler(SamplingParams(temperature=temperature, seed=1, logit_bias={best: -math.inf}), 16)
        assert best not in {banned.pick(logits, position) for position in range(300)}
        forced = Sampler(SamplingParams(temperature=temperature, seed=1, logit_bias={3: 1e4}), 16)
        assert {forced.pick(logits, position) for position in range(50)} == {3}


def test_ignore_eos_bans_end_tokens_and_not_stop_tokens() -> None:
    """End tokens of the model cannot be chosen; stop tokens of the caller still end the text."""
    params = SamplingParams(ignore_eos=True, stop_token_ids=(5,))
    sampler = Sampler(params, 16, end_ids=(2,))
    logits = np.zeros(16, np.float32)
    logits[2] = 9
    logits[5] = 1
    assert sampler.pick(logits, 0) == 5
    assert sampler.is_end(5)


def test_a_constraint_masks_and_follows() -> None:
    """Only allowed tokens are chosen, and the constraint steps over what was accepted."""
    only = Only(16, {4, 9})
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3, grammar="stands for a compiled one"), 16, constraint=only)
    picks = {sampler.pick(random_logits(position), position) for position in range(100)}
    assert picks == {4, 9}
    sampler.accept(9)
    assert only.accepted == [9]


def test_a_grammar_needs_its_constraint() -> None:
    """Forgetting to compile the grammar is an error, not free text."""
    with pytest.raises(ValueError, match="constraint"):
        Sampler(SamplingParams(json_schema="{}"), 16)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_left_says_why(temperature: float) -> None:
    """The error names bias, grammar, or their combination."""
    logits = random_logits(2)
    ban_all = dict.fromkeys(range(16), -math.inf)
    with pytest.raises(NoTokenLeftError, match="logit_bias bans every token of the vocabulary"):
        Sampler(SamplingParams(temperature=temperature, logit_bias=ban_all), 16).pick(logits, 0)
    with pytest.raises(NoTokenLeftError, match="grammar allows no token"):
        Sampler(SamplingParams(temperature=temperature), 16, constraint=Only(16, set())).pick(logits, 0)
    params = SamplingParams(temperature=temperature, logit_bias={4: -math.inf})
    with pytest.raises(NoTokenLeftError, match="ban every token the grammar allows"):
        Sampler(params, 16, constraint=Only(16, {4})).pick(logits, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(bad: float, temperature: float) -> None:
    """One NaN or +inf among the logits is reported, not sampled around."""
    logits = random_logits(3)
    logits[7] = bad
    with pytest.raises(NativeError, match="not numbers"):
        Sampler(SamplingParams(temperature=temperature), 16).pick(logits, 0)


# -- choice -----------------------------------------------------------------------------------------------------------


def test_temperature_zero_takes_the_first_of_the_best() -> None:
    """Ties go to the lowest id."""
    logits = np.array([1, 5, 5, 0], np.float32)
    assert Sampler(SamplingParams(), 4).pick(logits, 0) == 1


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 100.0])
def test_extreme_temperatures_work(temperature: float) -> None:
    """Tiny temperatures take the best token, large ones spread."""
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1), 16)
    picks = {sampler.pick(random_logits(4), position) for position in range(200)}
    assert len(picks) == (1 if temperature < 1 else 16)


def test_one_seed_is_one_sequence_of_choices() -> None:
    """A choice is a function of (seed, position, logits), whatever was asked before; another seed differs."""
    params = SamplingParams(temperature=1.0, seed=11)
    forward = [Sampler(params, 16).pick(random_logits(t), t) for t in range(100)]
    sampler = Sampler(params, 16)
    backward = [sampler.pick(random_logits(t), t) for t in reversed(range(100))]
    assert forward == backward[::-1]
    other = Sampler(SamplingParams(temperature=1.0, seed=12), 16)
    assert forward != [other.pick(random_logits(t), t) for t in range(100)]


@pytest.mark.parametrize("n_vocab", [16, 1000])
def test_picks_follow_the_processed_distribution(n_vocab: int) -> None:
    """Over positions and seeds the picks have the probabilities that `process` states."""
    params = SamplingParams(temperature=0.7, top_k=8, top_p=0.9, seed=5)
    logits = random_logits(6, n_vocab)
    sampler = Sampler(params, n_vocab)
    candidates = sampler.process(logits)
    counts = Counter(sampler.pick(logits, position) for position in range(5000))
    assert set(counts) <= set(candidates.ids.tolist())
    observed = [counts[token] for token in candidates.ids.tolist()]
    assert stats.chisquare(observed, candidates.probabilities() * 5000).pvalue > 0.001


def test_gumbel_tells_a_draft_what_the_pick_will_be() -> None:
    """Scores plus the noise of `gumbel` have their maximum at the pick."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=2), 1000)
    for position in range(20):
        logits = random_logits(position, 1000)
        noisy = logits + sampler.gumbel(np.arange(1000, dtype=np.int32), position)
        assert int(noisy.argmax()) == sampler.pick(logits, position)


# -- log-probabilities ------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), token=st.integers(0, 15), n=st.integers(0, 20))
def test_logprobs_are_those_of_the_raw_logits(seed: int, token: int, n: int) -> None:
    """The chosen token and the n best have their log-softmax, best first."""
    logits = random_logits(seed)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = logprobs(logits, token, n)
    assert found.logprob == pytest.approx(expected[token], abs=1e-5)
    best_first = sorted(range(16), key=lambda token: (-logits[token], token))[:n]
    assert best_first == [best for best, _ in found.top]
    assert [value for _, value in found.top] == pytest.approx(expected[best_first], abs=1e-5)
