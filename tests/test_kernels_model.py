"""Native kernels inside whole targets: rows of chains and trees, likelihoods, memory of weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tiny import make_target

from eagle_edge.config import TargetParams
from eagle_edge.target import Target
from eagle_edge.tree import Tree, chain

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_kernels")]

Float32 = npt.NDArray[np.float32]


def logits(target: Target, tree: Tree) -> Float32:
    """[N, V]: every row of a tree, none committed."""
    evaluation = target.eval_tree(tree)
    rows = np.stack([evaluation.logits(node) for node in range(len(tree.tokens))])
    target.commit([])
    return rows


def one_by_one(target: Target, tokens: npt.NDArray[np.int32]) -> Float32:
    """[N, V]: the rows of plain decoding; the target is rewound."""
    n_past = target.n_past
    rows = []
    for token in tokens:
        rows.append(target.eval_tree(chain(int(token), tokens[:0])).logits(0))
        target.commit([0])
    target.rewind(n_past)
    return np.stack(rows)


def bushy_tree(tokens: npt.NDArray[np.int32], random: np.random.Generator) -> tuple[Tree, list[int]]:
    """A tree that holds ``tokens`` as one path among random siblings, and the nodes of that path."""
    ids: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    for token in tokens:
        parent = path[-1] if path else -1
        for _ in range(int(random.integers(0, 3)) if path else 0):
            ids.append(int(random.integers(0, 300)))
            parents.append(parent)
        ids.append(int(token))
        parents.append(parent)
        path.append(len(ids) - 1)
    return Tree(np.array(ids, np.int32), np.array(parents, np.int32), np.zeros(len(ids), np.float32)), path


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_chains_and_trees_give_the_rows_of_plain_decoding(quant: str, tmp_path: Path) -> None:
    """Chains of 1 to 64 rows and a bushy tree equal plain decoding bit for bit, past 256 cells too."""
    path = make_target(tmp_path / "target.gguf", quant=quant, n_layer=2)
    random = np.random.default_rng(1)
    with Target(path, TargetParams(n_ctx=512, max_nodes=64, kernels="native")) as target:
        for n_past in (40, 300):
            target.prefill(random.integers(4, 300, n_past - target.n_past, dtype=np.int32))
            tokens = random.integers(4, 300, 64, dtype=np.int32)
            plain = one_by_one(target, tokens)
            for n in (*range(1, 18), 31, 32, 33, 63, 64):
                assert np.array_equal(plain[:n], logits(target, chain(int(tokens[0]), tokens[1:n]))), n
            tree, nodes = bushy_tree(tokens[:20], random)
            assert np.array_equal(plain[:20], logits(target, tree)[nodes])


def test_rows_do_not_depend_on_where_a_branch_lies(tmp_path: Path) -> None:
    """After many rounds that keep some branch and drop others, rows still equal plain decoding of the same text."""
    path = make_target(tmp_path / "target.gguf", quant="Q8_0", n_layer=2)
    random = np.random.default_rng(2)
    text = random.integers(4, 300, 60, dtype=np.int32)
    with Target(path, TargetParams(n_ctx=512, max_nodes=64, kernels="native")) as target:
        target.prefill(text[:20])
        for start in range(20, 56, 4):
            tree, nodes = bushy_tree(text[start : start + 4], random)
            target.eval_tree(tree)
            target.commit(nodes)
        drafted = target.eval_tree(chain(int(text[56]), text[:0])).logits(0)
        target.rewind(0)
        target.prefill(text[:56])
        assert np.array_equal(drafted, target.eval_tree(chain(int(text[56]), text[:0])).logits(0))


def test_targets_keep_the_kernels_they_were_loaded_with(tmp_path: Path) -> None:
    """A target loaded with other kernels changes no bit of the one before, whose attention is the kernels' too."""
    path = make_target(tmp_path / "target.gguf", quant="Q8_0", n_layer=2)
    tokens = np.random.default_rng(3).integers(4, 300, 304, dtype=np.int32)
    with Target(path, TargetParams(n_ctx=512, max_nodes=8, kernels="native")) as first:
        first.prefill(tokens[:300])
        before = logits(first, chain(int(tokens[300]), tokens[301:]))
        with Target(path, TargetParams(n_ctx=512, max_nodes=8, kernels="llama.cpp")) as second:
            second.prefill(tokens[:300])
            other = logits(second, chain(int(tokens[300]), tokens[301:]))
            assert np.array_equal(before, logits(first, chain(int(tokens[300]), tokens[301:])))
    assert not np.array_equal(before, other)


@pytest.mark.model
def test_packaged_model_is_as_likely_as_with_llama_cpp(packaged_target: Path) -> None:
    """The log-likelihood of real text agrees with llama.cpp's kernels to half a percent of perplexity."""
    text = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
    losses = {}
    for kernels in ("llama.cpp", "native"):
        with Target(packaged_target, TargetParams(n_ctx=512, max_nodes=250, kernels=kernels)) as target:
            ids = np.array(target.tokenize(text)[:240], np.int32)
            rows = logits(target, chain(int(ids[0]), ids[1:])).astype(np.float64)[:-1]
            rows -= rows.max(axis=1, keepdims=True)
            picked = rows[np.arange(len(rows)), ids[1:]] - np.log(np.exp(rows).sum(axis=1))
            losses[kernels] = -float(picked.mean())
    assert math.exp(abs(losses["native"] - losses["llama.cpp"])) < 1.005
