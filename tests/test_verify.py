"""Verification: any draft gives the text of plain sampling, and every rule its distribution."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from eagle_edge import noise
from eagle_edge.config import SamplingParams
from eagle_edge.errors import NoTokenLeftError
from eagle_edge.filters import Candidates, proposal
from eagle_edge.sampling import Sampler, TokenLogprob
from eagle_edge.tree import Tree, chain
from eagle_edge.verify import verify

Float32 = npt.NDArray[np.float32]
V = 16
ALL = np.arange(V, dtype=np.int32)
END = 2


class Table:
    """A target whose logits depend on the last two tokens."""

    def __init__(self, seed: int, spread: float = 1.5) -> None:
        generator = np.random.default_rng(seed)
        self.rows = (generator.standard_normal((V, V, V)) * spread).astype(np.float32)

    def logits(self, text: list[int]) -> Float32:
        row: Float32 = self.rows[text[-2] if len(text) > 1 else 0, text[-1]]
        return row


@dataclass
class Evaluated:
    """The rows of one tree under a table; remembers which were read."""

    table: Table
    text: list[int]
    tree: Tree

    def __post_init__(self) -> None:
        self.read: list[int] = []

    def peek(self, node: int) -> Float32:
        self.read.append(node)
        path = self.tree.path(node)[1:]
        return self.table.logits(self.text + [int(self.tree.tokens[at]) for at in path])


Draft = Callable[[list[int]], Tree]


def random_tree(root: int, seed: int, n: int, favourites: int = V) -> Tree:
    """A tree of n nodes of any shape, with distinct siblings."""
    generator = np.random.default_rng(seed)
    parent, tokens = [-1], [root]
    taken: set[tuple[int, int]] = set()
    for _ in range(1, n):
        at, token = int(generator.integers(len(tokens))), int(generator.integers(favourites))
        if (at, token) not in taken:
            taken.add((at, token))
            parent.append(at)
            tokens.append(token)
    return Tree(np.array(tokens, np.int32), np.array(parent, np.int32), np.zeros(len(tokens), np.float32))


def likely_tree(table: Table, text: list[int], widths: tuple[int, ...]) -> Tree:
    """The most probable children of every node, ``widths`` per level: a deterministic draft, often right."""
    tokens, parent, paths, level = [text[-1]], [-1], [list(text)], [0]
    for width in widths:
        following = []
        for node in level:
            for token in np.argsort(-table.logits(paths[node]), kind="stable")[:width]:
                following.append(len(tokens))
                tokens.append(int(token))
                parent.append(node)
                paths.append([*paths[node], int(token)])
        level = following
    return Tree(np.array(tokens, np.int32), np.array(parent, np.int32), np.zeros(len(tokens), np.float32))


def plain(table: Table, params: SamplingParams, prompt: list[int], n: int) -> list[int]:
    """The text of one pick after another, without this module."""
    sampler, text = Sampler(params, V, prompt, end_ids=(END,)), list(prompt)
    while len(text) < len(prompt) + n:
        text.append(sampler.pick(table.logits(text), len(text)))
        sampler.accept(text[-1])
        if sampler.is_end(text[-1]):
            break
    return text[len(prompt) :]


def drafted(
    table: Table, params: SamplingParams, prompt: list[int], n: int, draft: Draft
) -> tuple[list[int], list[TokenLogprob], int]:
    """Text, log-probabilities and rounds of verification after verification."""
    sampler, text = Sampler(params, V, prompt, end_ids=(END,)), list(prompt)
    reported: list[TokenLogprob] = []
    rounds = 0
    while len(text) < len(prompt) + n:
        tree = draft(text)
        evaluation = Evaluated(table, text, tree)
        step = verify(tree, evaluation, sampler, len(text), limit=len(prompt) + n - len(text))
        rounds += 1
        assert len(step.tokens) == len(step.path) + 1
        assert [int(tree.tokens[node]) for node in step.path] == list(step.tokens[:-1])
        assert [0, *step.path] == evaluation.read
        text += step.tokens
        reported += step.logprobs
        if step.ended:
            break
    return text[len(prompt) :], reported, rounds


PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=4),
    SamplingParams(temperature=1.3, seed=5, top_k=8, top_p=0.9, min_p=0.02),
    SamplingParams(repeat_penalty=1.3, frequency_penalty=0.4, penalty_last_n=5),
    SamplingParams(
        temperature=1.0, seed=6, repeat_penalty=1.3, presence_penalty=0.5, penalty_last_n=-1, logit_bias={3: -math.inf}
    ),
]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    tree_seed=st.integers(0, 1000),
    n_nodes=st.integers(1, 40),
    favourites=st.sampled_from([1, 3, V]),
    params=st.sampled_from(PARAMS),
)
def test_any_draft_gives_the_plain_text(
    seed: int, tree_seed: int, n_nodes: int, favourites: int, params: SamplingParams
) -> None:
    """Whatever tree is drafted, the text is that of picking token by token."""
    table, prompt = Table(seed), [1, 7, 3]

    def draft(text: list[int]) -> Tree:
        return random_tree(text[-1], tree_seed + len(text), n_nodes, favourites)

    assert plain(table, params, prompt, 30) == drafted(table, params, prompt, 30, draft)[0]


@pytest.mark.parametrize("params", PARAMS[:3])
def test_a_right_draft_takes_few_rounds_and_a_wrong_one_takes_all(params: SamplingParams) -> None:
    """A draft of the very next tokens is accepted whole; one that is never right gives the same text."""
    table, prompt = Table(9), [1, 7]
    text = plain(table, params, prompt, 60)
    ahead = prompt + text

    def right(so_far: list[int]) -> Tree:
        return chain(so_far[-1], np.array(ahead[len(so_far) : len(so_far) + 5], np.int32))

    def wrong(so_far: list[int]) -> Tree:
        following = ahead[len(so_far)]
        return chain(so_far[-1], np.array([(following + 1) % V], np.int32))

    found, _, rounds = drafted(table, params, prompt, 60, right)
    assert (text, math.ceil(len(text) / 6)) == (found, rounds)
    found, _, rounds = drafted(table, params, prompt, 60, wrong)
    assert (text, len(text)) == (found, rounds)


def test_logprobs_do_not_depend_on_the_draft() -> None:
    """Reported log-probabilities are the target's, in a tree as in plain decoding."""
    params = SamplingParams(temperature=1.0, seed=3, n_logprobs=5, repeat_penalty=1.3)
    table, prompt = Table(2), [4, 5]
    alone = drafted(table, params, prompt, 40, lambda text: chain(text[-1], np.array([], np.int32)))
    in_tree = drafted(table, params, prompt, 40, lambda text: likely_tree(table, text, (3, 2, 2)))
    assert alone[:2] == in_tree[:2]
    assert in_tree[2] < alone[2]
    assert len(in_tree[1]) == len(in_tree[0])


def test_nothing_is_accepted_after_an_end_token() -> None:
    """A picked end token ends the walk, though the draft goes on; a drafted one that is not picked does not."""
    table = Table(1)
    table.rows[:, 5, END] = 50
    tree = chain(5, np.array([END, 6, 7], np.int32))
    step = verify(tree, Evaluated(table, [5], tree), Sampler(SamplingParams(), V, end_ids=(END,)), 1)
    assert (step.path, step.tokens, step.ended) == ((), (END,), True)
    table.rows[:, 5, 9] = 60
    step = verify(tree, Evaluated(table, [5], tree), Sampler(SamplingParams(), V, end_ids=(END,)), 1)
    assert (step.path, step.tokens, step.ended) == ((), (9,), False)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_the_limit_stops_the_walk(limit: int) -> None:
    """No more tokens are decided, and none accepted by the sampler, than the limit allows."""
    table, params = Table(3), SamplingParams(frequency_penalty=0.1, penalty_last_n=-1)
    text = plain(table, params, [1], 6)
    tree = chain(1, np.array(text[:5], np.int32))
    step = verify(tree, Evaluated(table, [1], tree), Sampler(params, V, [1], end_ids=(END,)), 1, limit=limit)
    assert tuple(text[:limit]) == step.tokens


class DeadEnd:
    """A constraint that allows everything until it has accepted n tokens, and then nothing."""

    def __init__(self, n: int) -> None:
        self.left = n

    def mask(self) -> npt.NDArray[np.bool_]:
        return np.full(V, self.left > 0)

    def accept(self, token: int) -> None:
        self.left -= 1


def test_a_dead_end_is_met_where_plain_decoding_meets_it() -> None:
    """Tokens before the dead end are kept; the error comes with the next round."""
    table = Table(4)
    text = plain(table, SamplingParams(), [1], 6)
    sampler = Sampler(SamplingParams(), V, constraint=DeadEnd(2))
    tree = chain(1, np.array(text[:5], np.int32))
    step = verify(tree, Evaluated(table, [1], tree), sampler, 1)
    assert ((1,), tuple(text[:2])) == (step.path, step.tokens)
    root = chain(text[1], np.array([], np.int32))
    with pytest.raises(NoTokenLeftError):
        verify(root, Evaluated(table, [1, *text[:2]], root), sampler, 3)


# -- distributions ----------------------------------------------------------------------------------------------------

SAMPLED = [
    {"temperature": 0.7, "top_k": 8, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 8, "top_p": 0.9},
    {"temperature": 1.3},
]
N_SAMPLES = 5000


def pair_probabilities(table: Table, settings: dict[str, float]) -> npt.NDArray[np.float64]:
    """[V, V] the probability of every pair of first tokens after the text [1], under plain sampling."""
    sampler = Sampler(SamplingParams(**settings), V)  # type: ignore[arg-type]
    pairs = np.zeros((V, V))
    first = sampler.process(table.logits([1]))
    for token, p in zip(first.ids.tolist(), first.probabilities(), strict=True):
        second = sampler.process(table.logits([1, token]))
        pairs[token, second.ids] = p * second.probabilities()
    return pairs


def p_value(pairs: Counter[tuple[int, int]], expected: npt.NDArray[np.float64]) -> float:
    """Chi-square of the counted pairs against their probabilities; pairs expected less than 5 times share a cell."""
    total = sum(pairs.values())
    observed = np.zeros((V, V))
    for pair, count in pairs.items():
        observed[pair] = count
    common = expected * total >= 5
    observed_cells = np.append(observed[common], observed[~common].sum())
    expected_cells = np.append(expected[common], expected[~common].sum()) * total
    if expected_cells[-1] < 5:
        if observed_cells[-1] > 10 * expected_cells[-1] + 10:
            return 0.0
        observed_cells, expected_cells = observed_cells[:-1], expected_cells[:-1]
        expected_cells *= observed_cells.sum() / expected_cells.sum()
    return float(stats.chisquare(observed_cells, expected_cells).pvalue)


def sample_pairs(
    table: Table,
    settings: dict[str, float],
    rule: str,
    draft: Callable[[list[int], Sampler], tuple[Tree, dict[int, Candidates]]],
) -> Counter[tuple[int, int]]:
    pairs: Counter[tuple[int, int]] = Counter()
    sampler = Sampler(SamplingParams(rule=rule, **settings), V)  # type: ignore[arg-type]
    for seed in range(N_SAMPLES):
        sampler.seed = seed
        text = [1]
        while len(text) < 3:
            tree, proposals = draft(text, sampler)
            step = verify(tree, Evaluated(table, text, tree), sampler, len(text), 3 - len(text), proposals)
            text += step.tokens
        pairs[text[1], text[2]] += 1
    return pairs


def sampled_chain(table: Table, text: list[int], sampler: Sampler) -> tuple[Tree, dict[int, Candidates]]:
    """Two tokens sampled from a draft that is a blurred copy of the target."""
    tokens: list[int] = []
    proposals = {}
    for node in range(2):
        blurred = 0.5 * table.logits(text + tokens) + np.roll(ALL, 3) * np.float32(0.1)
        proposals[node] = proposal(ALL[::-1], blurred[::-1], 1.0)
        tokens.append(sampler.choose(proposals[node], len(text) + node, noise.DRAFT))
    return chain(text[-1], np.array(tokens, np.int32)), proposals


@pytest.mark.parametrize("settings", SAMPLED)
@pytest.mark.parametrize("widths", [(1, 1), (3, 2)])
@pytest.mark.parametrize("rule", ["gumbel", "siblings"])
def test_a_rule_keeps_the_plain_distribution(rule: str, widths: tuple[int, ...], settings: dict[str, float]) -> None:
    """Pairs sampled through chains and trees pass a chi-square test against plain sampling."""
    table = Table(5)
    texts = [(1,), *((1, token) for token in range(V))]
    trees = {text: likely_tree(table, list(text), widths) for text in texts}
    pairs = sample_pairs(table, settings, rule, lambda text, _: (trees[tuple(text)], {}))
    assert p_value(pairs, pair_probabilities(table, settings)) > 0.001


@pytest.mark.parametrize("settings", SAMPLED)
def test_rejection_keeps_the_plain_distribution(settings: dict[str, float]) -> None:
    """Pairs accepted by p/q or drawn from the residual pass the same test."""
    table = Table(5)
    pairs = sample_pairs(table, settings, "rejection", lambda text, sampler: sampled_chain(table, text, sampler))
    assert p_value(pairs, pair_probabilities(table, settings)) > 0.001


def test_the_test_sees_a_wrong_q() -> None:
    """With another q than the tokens were drawn from, the chi-square test fails by far."""
    table, settings = Table(5), SAMPLED[1]

    def lying(text: list[int], sampler: Sampler) -> tuple[Tree, dict[int, Candidates]]:
        tree, proposals = sampled_chain(table, text, sampler)
        return tree, {node: Candidates(ALL, np.zeros(V, np.float32)) for node in proposals}

    assert p_value(sample_pairs(table, settings, "rejection", lying), pair_probabilities(table, settings)) < 1e-6


def test_the_test_sees_a_wrong_sibling_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling the full distribution after rejections, instead of the residual, fails the chi-square test."""
    table, settings = Table(5), SAMPLED[1]
    honest = Sampler.choose

    def full(self: Sampler, candidates: Candidates, position: int, stream: int) -> int:
        if position == 1:
            candidates = self.process(table.logits([1]))
        return honest(self, candidates, position, stream)

    monkeypatch.setattr(Sampler, "choose", full)
    pairs = sample_pairs(table, settings, "siblings", lambda text, _: (likely_tree(table, text, (3, 2)), {}))
    assert p_value(pairs, pair_probabilities(table, settings)) < 1e-6


@pytest.mark.parametrize("rule", ["siblings", "rejection"])
def test_published_rules_are_repeatable_and_greedy_at_zero(rule: str) -> None:
    """One seed and one draft give one text; at temperature 0 every rule is the argmax."""
    table = Table(6)

    def pairs(seed: int) -> list[tuple[int, ...]]:
        sampler = Sampler(SamplingParams(temperature=1.0, rule=rule, seed=seed), V)
        found = []
        for position in range(1, 40):
            tree, proposals = sampled_chain(table, [1], sampler)
            found.append(verify(tree, Evaluated(table, [1], tree), sampler, position, None, proposals).tokens)
        return found

    assert pairs(1) == pairs(1)
    assert pairs(1) != pairs(2)
    greedy = SamplingParams(rule=rule)
    tree = likely_tree(table, [1], (1, 1, 1))
    step = verify(tree, Evaluated(table, [1], tree), Sampler(greedy, V), 1)
    assert len(step.path) == 3


def test_rejection_refuses_what_it_cannot_judge() -> None:
    """A tree, or a chain without the draft's distribution, is an argument error."""
    table = Table(7)
    sampler = Sampler(SamplingParams(temperature=1.0, rule="rejection", seed=1), V)
    tree = likely_tree(table, [1], (2,))
    with pytest.raises(ValueError, match="chains only"):
        verify(tree, Evaluated(table, [1], tree), sampler, 1)
    tree = likely_tree(table, [1], (1,))
    with pytest.raises(ValueError, match="distribution at node 0"):
        verify(tree, Evaluated(table, [1], tree), sampler, 1)
