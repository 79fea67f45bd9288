"""The dynamic tree against an independent brute-force build of EAGLE-2's algorithm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_edge.config import DraftParams
from eagle_edge.expand import Children, Int32, expand
from eagle_edge.tree import Tree, chain

ROOT = 7
Path = tuple[int, ...]


class RandomHead:
    """Children that depend only on the path of tokens; also checks how it is called."""

    def __init__(self, seed: int, n_vocab: int, sharpness: float) -> None:
        self.seed, self.n_vocab, self.sharpness = seed, n_vocab, sharpness
        self.paths: list[Path] = []  # of each evaluated node
        self.level_sizes: list[int] = []

    def children(self, path: Path, top_k: int) -> Children:
        rng = np.random.default_rng([self.seed, *path])
        logits = self.sharpness * rng.standard_normal(self.n_vocab)
        logprobs = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        best = np.argsort(-logprobs, kind="stable")[:top_k]
        return best.astype(np.int32), logprobs[best]

    def level(self, tokens: Int32, parents: Int32, top_k: int) -> Children:
        start = len(self.paths)
        assert all(parent < start for parent in parents)
        above = [self.paths[p] if p >= 0 else () for p in parents]
        self.paths += [(*path, int(token)) for path, token in zip(above, tokens, strict=True)]
        self.level_sizes.append(len(tokens))
        results = [self.children(path, top_k) for path in self.paths[start:]]
        return np.stack([ids for ids, _ in results]), np.stack([logs for _, logs in results])

    def tree(self, params: DraftParams, room: int = 1000) -> Tree:
        return expand(ROOT, self.children((), params.top_k), self.level, params, room)


def brute_force(head: RandomHead, params: DraftParams, room: int) -> dict[Path, float]:
    """Path to score of every node below the root, built without any shortcut."""

    def grown(path: Path, score: np.float32) -> dict[Path, np.float32]:
        tokens, logprobs = head.children(path, params.top_k)
        return {
            (*path, int(token)): np.float32(score + logprob) for token, logprob in zip(tokens, logprobs, strict=True)
        }

    scores = grown((), np.float32(0))
    frontier = list(scores)
    for _ in range(min(params.depth, room - 1)):
        found: dict[Path, np.float32] = {}
        for path in frontier:
            found |= grown(path, scores[path])
        scores |= found
        frontier = sorted(found, key=lambda path: -found[path])[: params.top_k]
    best = sorted(scores, key=lambda path: -scores[path])[: params.total - 1]
    return {path: float(scores[path]) for path in best} if room > 0 else {}


def paths_of(tree: Tree) -> list[Path]:
    return [tuple(int(tree.tokens[node]) for node in tree.path(i))[1:] for i in range(len(tree))]


@given(
    seed=st.integers(0, 10_000),
    size=st.tuples(st.integers(1, 80), st.integers(0, 6), st.integers(1, 8)),
    room=st.integers(0, 9),
    sharpness=st.sampled_from([0.1, 1.0, 5.0]),
)
@settings(max_examples=200, deadline=None)
def test_tree_equals_brute_force(seed: int, size: tuple[int, int, int], room: int, sharpness: float) -> None:
    """Same nodes and scores as the plain algorithm, whatever the shape, the room and the head's confidence."""
    total, depth, top_k = size
    params = DraftParams(min(total, 1 + top_k + depth * top_k**2), depth, top_k)
    head = RandomHead(seed, 12, sharpness)
    tree = head.tree(params, room)
    expected = brute_force(RandomHead(seed, 12, sharpness), params, room)
    assert set(paths_of(tree)[1:]) == set(expected)
    for path, score in zip(paths_of(tree)[1:], tree.logprob[1:], strict=True):
        assert score == pytest.approx(expected[path], abs=1e-5)


@given(seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_likeliest_path_comes_first(seed: int) -> None:
    """Nodes are in depth-first order, the likelier sibling first, so the best guess is a prefix of the batch."""
    tree = RandomHead(seed, 20, 2.0).tree(DraftParams(40, 5, 6))
    for node in range(1, len(tree)):
        siblings = np.flatnonzero(tree.parent == tree.parent[node])
        assert (np.diff(tree.logprob[siblings]) <= 0).all()
        subtree = np.flatnonzero(tree.ancestors()[:, node])
        assert subtree.tolist() == list(range(node, node + len(subtree)))


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_width_one_is_a_chain(depth: int) -> None:
    """Top-k of one gives a chain as long as asked, the greedy continuation of the head."""
    head = RandomHead(3, 30, 1.0)
    tree = head.tree(DraftParams(depth + 2, depth, 1))
    assert tree.parent.tolist() == list(range(-1, depth + 1))
    path: Path = ()
    for token in tree.tokens[1:]:
        assert token == head.children(path, 1)[0][0]
        path = (*path, int(token))


def test_total_of_one_is_plain_decoding() -> None:
    """One node is the root alone, and nothing is evaluated for it."""
    head = RandomHead(0, 30, 1.0)
    assert head.tree(DraftParams(1, 7, 10)).tokens.tolist() == [ROOT]
    assert head.tree(DraftParams(60, 7, 10), room=0).tokens.tolist() == [ROOT]
    assert head.level_sizes == []


@pytest.mark.parametrize("room", range(1, 6))
def test_no_node_lies_deeper_than_the_room(room: int) -> None:
    """The tree ends where the context does."""
    tree = RandomHead(5, 30, 5.0).tree(DraftParams(60, 7, 10), room)
    assert tree.depth().max() == room


def test_levels_that_cannot_matter_are_not_evaluated() -> None:
    """Only nodes whose children could enter the tree are evaluated: a flat head costs one small level, not seven."""
    flat = RandomHead(1, 1000, 0.01)
    flat.tree(DraftParams(8, 7, 10))
    assert flat.level_sizes == [6]
    sharp = RandomHead(1, 12, 6.0)
    sharp.tree(DraftParams(60, 7, 10))
    assert sharp.level_sizes[0] == 10
    assert sum(sharp.level_sizes) < 70


def test_published_setting_is_the_default() -> None:
    """60 nodes with the root, 7 evaluations after the first, 10 children: at most 8 deep."""
    assert DraftParams() == DraftParams(60, 7, 10)
    tree = RandomHead(2, 12, 8.0).tree(DraftParams())
    assert len(tree) == 60
    assert tree.depth().max() <= 8


@pytest.mark.parametrize(
    ("total", "depth", "top_k"), [(0, 1, 1), (255, 9, 10), (3, 0, 1), (60, -1, 10), (60, 7, 0), (9, 1, 2)]
)
def test_impossible_sizes_are_refused(total: int, depth: int, top_k: int) -> None:
    """A size that cannot be drafted raises ValueError when the settings are made."""
    with pytest.raises(ValueError, match=r"must be between|give at most"):
        DraftParams(total, depth, top_k)


def test_chain_settings() -> None:
    """A chain of n tokens asks for n nodes under the root; zero is plain decoding."""
    assert [DraftParams.chain(n).total for n in (0, 1, 4)] == [1, 2, 5]
    for n in range(5):
        assert len(RandomHead(0, 9, 1.0).tree(DraftParams.chain(n))) == n + 1


def test_a_part_of_a_chain_is_no_chain() -> None:
    """The parents of chains are shared and not looked at again; other slices of them are."""
    parents = chain(1, [2, 3, 4, 5]).parent
    assert len(Tree(np.arange(3, dtype=np.int32), parents[:3], np.zeros(3, np.float32))) == 3
    for part in (parents[1:4], parents[::2], parents[3:0:-1]):
        with pytest.raises(ValueError, match="an earlier node"):
            Tree(np.arange(len(part), dtype=np.int32), part, np.zeros(len(part), np.float32))
