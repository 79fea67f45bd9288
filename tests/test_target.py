from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_target import boundary_states, load_llama
from tiny import N_VOCAB, make_recurrent, make_target

from eagle_edge.config import TargetParams
from eagle_edge.errors import EagleEdgeError, FileFormatError
from eagle_edge.exactness import check, open_exact
from eagle_edge.target import Target
from eagle_edge.tree import Tree, chain

pytestmark = pytest.mark.native

NOTHING = np.empty(0, np.int32)
# llama.cpp's fused attention rounds K and V to 16 bits whatever the cache holds.
PRECISE: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}


@pytest.fixture(scope="module")
def tiny(tiny_target: Path) -> Iterator[Target]:
    with Target(tiny_target, TargetParams(n_ctx=512, n_batch=128, n_threads=2, **PRECISE)) as target:
        yield target


@pytest.fixture(scope="module")
def packaged(packaged_target: Path) -> Iterator[Target]:
    with Target(packaged_target, TargetParams(n_ctx=1024, n_threads=2)) as target:
        yield target


@st.composite
def trees(draw: st.DrawFn, n_vocab: int, max_nodes: int = 20) -> Tree:
    n = draw(st.integers(1, max_nodes))
    parent = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, n))]
    tokens = draw(st.lists(st.integers(0, n_vocab - 1), min_size=n, max_size=n))
    return Tree(np.array(tokens, np.int32), np.array(parent, np.int32), np.zeros(n, np.float32))


def prefill(target: Target, ids: list[int]) -> None:
    for start in range(0, len(ids), target.params.n_batch):
        target.prefill(ids[start : start + target.params.n_batch])


def rows_alone(target: Target, tokens: list[int]) -> list[np.ndarray]:
    """The logits after each token, evaluated one at a time; the tokens stay committed."""
    rows = []
    for token in tokens:
        rows.append(target.eval_tree(chain(token, NOTHING)).logits(0))
        target.commit([0])
    return rows


@settings(max_examples=25, deadline=None)
@given(tree=trees(N_VOCAB), prompt=st.lists(st.integers(0, N_VOCAB - 1), max_size=40))
def test_every_row_of_a_tree_equals_its_path_alone(tiny: Target, tree: Tree, prompt: list[int]) -> None:
    """A node's logits are those of its root-to-node path, whatever else is in the tree."""
    tiny.rewind(0)
    prefill(tiny, prompt)
    evaluation = tiny.eval_tree(tree)
    rows = [evaluation.logits(node) for node in range(len(tree))]
    for node in set(range(len(tree))) - set(tree.parent.tolist()):
        path = tree.path(node)
        tiny.rewind(len(prompt))
        alone = rows_alone(tiny, tree.tokens[path].tolist())
        for at, row in zip(path, alone, strict=True):
            np.testing.assert_allclose(rows[at], row, atol=1e-4)


@pytest.mark.model
@settings(max_examples=8, deadline=None)
@given(tree=trees(49152, 30), prompt=st.lists(st.integers(0, 49151), max_size=20))
def test_tree_rows_of_the_packaged_model_are_bit_equal(packaged: Target, tree: Tree, prompt: list[int]) -> None:
    """On the packaged file no bit of a row depends on the tree around it."""
    packaged.rewind(0)
    prefill(packaged, prompt)
    evaluation = packaged.eval_tree(tree)
    node = len(tree) - 1
    path = tree.path(node)
    rows = [evaluation.logits(at) for at in path]
    packaged.rewind(len(prompt))
    for row, alone in zip(rows, rows_alone(packaged, tree.tokens[path].tolist()), strict=True):
        assert np.array_equal(row, alone)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_committed_paths_leave_the_cache_as_plain_decoding_would(tiny: Target, data: st.DataObject) -> None:
    """After several rounds that each keep some path of some tree, the next row equals that of a fresh cache."""
    tiny.rewind(0)
    text: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        tree = data.draw(trees(N_VOCAB))
        tiny.eval_tree(tree)
        path = tree.path(data.draw(st.integers(0, len(tree) - 1)))
        tiny.commit(path)
        text += tree.tokens[path].tolist()
        assert tiny.n_past == len(text)
    row = tiny.eval_tree(chain(7, NOTHING)).logits(0)
    tiny.rewind(0)
    prefill(tiny, text)
    np.testing.assert_allclose(row, tiny.eval_tree(chain(7, NOTHING)).logits(0), atol=1e-4)


@pytest.mark.parametrize("make", [make_target, make_recurrent])
def test_a_forgotten_text_leaves_no_trace(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Rows after a rewind to the start are, bit for bit, those of a target that has seen nothing else."""
    path, params = make(tmp_path / "target.gguf"), TargetParams(n_ctx=512, n_batch=64, n_threads=2)
    with Target(path, params) as used, Target(path, params) as new:
        for _ in range(5):
            used.prefill(list(range(64)))
        used.eval_tree(chain(3, np.array([5, 7], np.int32)))
        used.rewind(0)
        for target in (used, new):
            target.prefill([1, 2, 3])
        row, as_new = (target.eval_tree(chain(4, NOTHING)).logits(0) for target in (used, new))
        assert np.array_equal(row, as_new)


@pytest.mark.parametrize("route", ["layer_input", "callback"])
def test_taps_equal_the_torch_reference(tiny: Target, tiny_target: Path, route: str) -> None:
    """Both routes read the residual stream that transformers computes from the same weights."""
    boundaries, ids = (1, 3, 5), [5, 300, 17, 42, 42, 8, 250, 3]
    tiny.set_taps(boundaries, route)  # type: ignore[arg-type]
    taps = tiny.prefill(ids).taps(range(len(ids)))
    np.testing.assert_allclose(taps, boundary_states(load_llama(tiny_target), ids, boundaries), atol=1e-3)
    tiny.set_taps(())


def test_taps_of_tree_nodes_and_of_the_final_norm(tiny: Target, tiny_target: Path) -> None:
    """A node's taps are those of its path; boundary -1 is the state the output matrix reads."""
    tiny.set_taps((2, -1))
    tree = Tree(np.array([9, 8, 7, 6], np.int32), np.array([-1, 0, 0, 2], np.int32), np.zeros(4, np.float32))
    tiny.prefill([1, 2, 3])
    taps = tiny.eval_tree(tree).taps([0, 2, 3])
    expected = boundary_states(load_llama(tiny_target), [1, 2, 3, 9, 7, 6], (2, -1))
    np.testing.assert_allclose(taps, expected[3:], atol=1e-3)
    tiny.set_taps(())


@pytest.mark.model
def test_taps_of_the_packaged_model_follow_the_torch_reference(packaged: Target, packaged_target: Path) -> None:
    """The quantised engine's taps stay within its own rounding of the dequantised weights' states."""
    ids = packaged.tokenize("The quick brown fox jumps over the lazy dog.")
    packaged.set_taps((2, 15, 27))
    taps = packaged.prefill(ids).taps(range(len(ids)))
    expected = boundary_states(load_llama(packaged_target), ids, (2, 15, 27))
    packaged.set_taps(())
    cosine = (taps * expected).sum(1) / np.linalg.norm(taps, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.99


def test_architectures_without_layer_inputs_are_tapped_by_callback(tmp_path: Path) -> None:
    """A Qwen2-shaped target has taps too, and refuses the route it does not have."""
    with Target(make_target(tmp_path / "q.gguf", architecture="qwen2"), TargetParams(n_ctx=64)) as target:
        with pytest.raises(ValueError, match="not available"):
            target.set_taps((1, 2, 3), "layer_input")
        target.set_taps((1, 2, 3))
        taps = target.prefill([3, 4, 5]).taps([0, 1, 2])
        assert np.isfinite(taps).all()
        assert np.abs(taps).max() > 0


@pytest.mark.parametrize("n", [31, 32, 33, 63, 64, 65, 129, 400])
def test_small_batches_give_the_taps_of_a_big_one(tiny_target: Path, n: int) -> None:
    """Taps are complete for every token, whatever the batch size."""
    ids = np.random.default_rng(n).integers(0, N_VOCAB, n).tolist()
    rows = []
    for n_batch in (64, 512):
        with Target(tiny_target, TargetParams(n_ctx=512, n_batch=n_batch, max_nodes=16, **PRECISE)) as target:
            target.set_taps((2, 3, 4))
            taps = [
                target.prefill(ids[at : at + n_batch]).taps(range(len(ids[at : at + n_batch])))
                for at in range(0, n, n_batch)
            ]
            rows.append(np.concatenate(taps))
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)


def test_streams_are_independent(tiny: Target) -> None:
    """Sequences that are evaluated together have the rows they have alone."""
    texts = [[1, 2, 3, 4], [9, 8], [7, 7, 7]]
    tiny.rewind(0)
    tiny.clear_stream()
    tokens = [token for text in texts for token in text]
    streams = [i for i, text in enumerate(texts) for _ in text]
    last = [at == len(text) - 1 for text in texts for at in range(len(text))]
    evaluation = tiny.eval_streams(tokens, streams, last)
    rows = [evaluation.logits(int(i)) for i in np.flatnonzero(last)]
    tiny.clear_stream()
    for text, row in zip(texts, rows, strict=True):
        tiny.rewind(0)
        np.testing.assert_allclose(row, rows_alone(tiny, text)[-1], atol=1e-4)
    tiny.rewind(0)


def test_impossible_calls_are_refused_and_change_nothing(tiny: Target) -> None:
    """Every bad argument is a ValueError with the value in it, and the target works afterwards."""
    tiny.rewind(0)
    prefill(tiny, [1, 2, 3])
    with pytest.raises(ValueError, match="token 320"):
        tiny.eval_tree(chain(N_VOCAB, NOTHING))
    with pytest.raises(ValueError, match="token -1"):
        tiny.prefill([-1])
    with pytest.raises(ValueError, match="64"):
        tiny.eval_tree(chain(1, np.zeros(64, np.int32)))
    with pytest.raises(ValueError, match="1 to 128"):
        tiny.prefill([])
    with pytest.raises(ValueError, match="rewind"):
        tiny.rewind(4)
    with pytest.raises(ValueError, match="boundary 7"):
        tiny.set_taps((1, 2, 7))
    evaluation = tiny.eval_tree(chain(1, NOTHING))
    with pytest.raises(ValueError, match="node 1"):
        evaluation.logits(1)
    with pytest.raises(ValueError, match="not a child"):
        tiny.commit([1])
    tiny.commit([0])
    assert tiny.n_past == 4
    tiny.eval_tree(chain(1, NOTHING))
    with pytest.raises(ValueError, match="is over"):
        evaluation.logits(0)


def test_the_context_ends_where_it_says(tiny_target: Path) -> None:
    """A position outside the context is refused before llama.cpp sees it."""
    with Target(tiny_target, TargetParams(n_ctx=16)) as target:
        target.prefill(list(range(15)))
        target.eval_tree(chain(1, NOTHING))
        with pytest.raises(EagleEdgeError, match="position 16"):
            target.eval_tree(chain(1, np.zeros(1, np.int32)))
        target.eval_tree(chain(1, NOTHING)).logits(0)


def test_broken_files_fail_in_one_line(tmp_path: Path, tiny_target: Path) -> None:
    """No file, another file and a cut file are FileFormatErrors."""
    with pytest.raises(FileFormatError, match="no such file"):
        Target(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is not a model")
    with pytest.raises(FileFormatError, match=r"text\.gguf"):
        Target(tmp_path / "text.gguf")
    (tmp_path / "cut.gguf").write_bytes(tiny_target.read_bytes()[:-4096])
    with pytest.raises(FileFormatError, match=r"cut\.gguf"):
        Target(tmp_path / "cut.gguf")


def test_a_recurrent_target_decodes_chains_and_refuses_branches(tmp_path: Path) -> None:
    """Mamba runs plainly; a tree is refused instead of corrupting its state."""
    with Target(make_recurrent(tmp_path / "mamba.gguf"), TargetParams(n_ctx=64)) as target:
        assert not target.can_branch
        target.prefill([1, 2, 3])
        assert np.isfinite(target.eval_tree(chain(4, NOTHING)).logits(0)).all()
        with pytest.raises(ValueError, match="chains only"):
            target.eval_tree(
                Tree(np.array([1, 2, 3], np.int32), np.array([-1, 0, 0], np.int32), np.zeros(3, np.float32))
            )


def test_a_closed_target_says_so(tiny_target: Path) -> None:
    """Closing twice is harmless; using it afterwards is an error, not a crash."""
    target = Target(tiny_target, TargetParams(n_ctx=64))
    target.close()
    target.close()
    with pytest.raises(EagleEdgeError, match="closed"):
        target.tokenize("x")


def test_tokens_and_bytes_round_trip(tiny: Target) -> None:
    """The bytes of the tokens of a text are the text."""
    text = "Hello, wörld: 你好 🙂"
    assert b"".join(tiny.piece(token) for token in tiny.tokenize(text, add_special=False)).decode() == text


@pytest.mark.model
def test_the_packaged_model_is_exact_by_default(packaged_target: Path) -> None:
    """The check at load finds equal rows for the packaged file, after a short and a long text."""
    target, found = open_exact(packaged_target, TargetParams(n_ctx=512), "strict")
    with target:
        assert found.rows_equal
        assert check(target, max_seconds=60).n_cells >= 260
