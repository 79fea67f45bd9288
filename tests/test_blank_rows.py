"""Small chains share one graph whose other rows are never computed: no bit of what is wanted may depend on that."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny import make_target

from eagle_edge.config import TargetParams
from eagle_edge.target import TapRoute, Target
from eagle_edge.tree import Tree, chain

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_kernels")]

ROWS = 7  # of the shared graph
LONE = 32  # LONE_ROUNDS


def chain_of(tokens: npt.NDArray[np.int32], n: int) -> Tree:
    return chain(int(tokens[0]), tokens[1:n])


def graph_rows(target: Target, sizes: list[int], atol: float = 0.0) -> list[int]:
    """Rows of the graph for every size, while logits and taps are compared with those of a larger chain."""
    tokens = np.arange(5, 5 + ROWS + 1, dtype=np.int32)
    whole = target.eval_tree(chain_of(tokens, ROWS + 1))
    assert target.graph_rows == ROWS + 1
    logits = [whole.logits(node) for node in range(ROWS + 1)]
    taps = whole.taps(range(ROWS + 1))
    rows = []
    for n in sizes:
        evaluation = target.eval_tree(chain_of(tokens, n))
        rows.append(target.graph_rows)
        for node in range(n):
            np.testing.assert_allclose(evaluation.logits(node), logits[node], rtol=0, atol=atol)
        np.testing.assert_allclose(evaluation.taps(range(n)), taps[:n], rtol=0, atol=atol)
    return rows


SIZES = [1, 2, 3, 7, 1, 4, 6, 2, 5, 1]


def test_the_packaged_model_has_one_graph(packaged_target: Path) -> None:
    """Whatever the size and the one before, logits and taps are those of the larger chain, bit for bit."""
    with Target(packaged_target, TargetParams(n_ctx=512, n_threads=2)) as target:
        target.set_taps([2, 15, 27])
        target.prefill(np.arange(100, 200, dtype=np.int32))
        assert graph_rows(target, SIZES) == [ROWS] * len(SIZES)


def test_blank_rows_are_left_out(packaged_target: Path) -> None:
    """Where llama.cpp keeps the logits of all rows, those beyond the wanted ones are still the last evaluation's."""
    tokens = np.arange(5, 5 + ROWS, dtype=np.int32)
    with Target(packaged_target, TargetParams(n_ctx=512, n_threads=2)) as target:
        target.prefill(np.arange(100, 140, dtype=np.int32))
        target.eval_tree(chain_of(tokens, 2))  # looks at the graph
        whole = target.eval_tree(chain_of(tokens, ROWS))
        before = [whole.logits(node) for node in range(ROWS)]
        others = chain_of(tokens + 400, 2)
        address = target.eval_tree(others).peek(0).ctypes.data
        assert target.graph_rows == ROWS
        kept = np.ctypeslib.as_array((ctypes.c_float * (ROWS * target.n_vocab)).from_address(address))
        rows = kept.reshape(ROWS, target.n_vocab)
        assert not np.array_equal(rows[1], before[1])
        for node in range(2, ROWS):
            np.testing.assert_array_equal(rows[node], before[node])


def test_committed_text_is_the_same(packaged_target: Path) -> None:
    """Twenty tokens committed from chains of changing size leave the cache that one by one leaves."""
    tokens = np.arange(300, 320, dtype=np.int32)
    with Target(packaged_target, TargetParams(n_ctx=512, n_threads=2)) as target:
        last = []
        for sizes in ((1,) * 20, (3, 1, 7, 2, 1, 5, 1)):
            target.rewind(0)
            target.prefill(np.arange(100, 140, dtype=np.int32))
            at = 0
            for n in sizes:
                evaluation = target.eval_tree(chain_of(tokens[at:], n))
                last.append(evaluation.logits(n - 1))
                target.commit(range(n))
                at += n
        np.testing.assert_array_equal(last[19], last[-1])


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, True),
        ({"architecture": "qwen2"}, True),
        ({"quant": "F32"}, False),  # the last product is llama.cpp's
        ({"n_embd": 224, "n_head": 7, "n_head_kv": 7}, False),  # rows and heads could be confused
        ({"n_embd": 224, "n_head": 7, "n_head_kv": 1}, False),
    ],
)
def test_a_graph_is_shared_only_where_it_can_be(tmp_path: Path, changes: dict[str, Any], shared: bool) -> None:
    """The first evaluation looks at the graph; where rows cannot be left out, every size has its own."""
    path = make_target(tmp_path / "target.gguf", **{"quant": "Q8_0", **changes})
    with Target(path, TargetParams(n_ctx=256, n_threads=2)) as target:
        if target.layer_input_taps:
            target.set_taps([1, 4])
        target.prefill([7, 8, 9])
        rows = graph_rows(target, SIZES, atol=1e-4 if "quant" in changes else 0.0)
        assert rows[1:] == ([ROWS] * len(SIZES) if shared else SIZES)[1:]


@pytest.mark.parametrize("route", ["layer_input", "callback"])
def test_taps_by_callback_see_whole_graphs(tmp_path: Path, route: TapRoute) -> None:
    """A callback is given tensors while the graph is computed, so none has fewer rows then."""
    path = make_target(tmp_path / "target.gguf", quant="Q8_0")
    with Target(path, TargetParams(n_ctx=256, n_threads=2)) as target:
        target.set_taps([1, 4], route)
        target.prefill([7, 8, 9])
        assert graph_rows(target, [3, 1, 2])[1:] == ([ROWS] * 2 if route == "layer_input" else [1, 2])


def test_plain_decoding_has_a_graph_of_its_own(packaged_target: Path) -> None:
    """After a while of single nodes the graph is theirs, and a draft brings the shared one back."""
    with Target(packaged_target, TargetParams(n_ctx=256, n_threads=2)) as target:
        tokens = np.arange(100, 108, dtype=np.int32)
        rows = []
        for n in (1, 2, *([1] * LONE), 3):
            target.eval_tree(chain_of(tokens, n))
            rows.append(target.graph_rows)
        assert rows == [1, *([ROWS] * LONE), 1, ROWS]


def test_the_end_of_the_context_has_no_room_for_blank_rows(tmp_path: Path) -> None:
    """The last positions are evaluated as before, down to the very last."""
    path = make_target(tmp_path / "target.gguf", quant="Q8_0")
    with Target(path, TargetParams(n_ctx=64, n_threads=2)) as target:
        target.prefill(np.arange(5, 5 + 64 - ROWS, dtype=np.int32))
        rows = []
        for _ in range(ROWS):
            target.eval_tree(chain_of(np.array([9, 10], np.int32), 2 if target.n_past < 63 else 1))
            rows.append(target.graph_rows)
            target.commit([0])
        assert rows == [ROWS, *([2] * (ROWS - 2)), 1]


def test_branches_have_graphs_of_their_own(packaged_target: Path) -> None:
    """A tree with siblings between two chains: the rows of each are those it has alone."""
    tokens = np.array([100, 101, 102], np.int32)
    tree = Tree(tokens, np.array([-1, 0, 0], np.int32), np.zeros(3, np.float32))
    with Target(packaged_target, TargetParams(n_ctx=256, n_threads=2)) as target:
        target.prefill(np.arange(200, 240, dtype=np.int32))
        before = target.eval_tree(chain_of(tokens, 2)).logits(1)
        branches = target.eval_tree(tree)
        assert target.graph_rows == 3
        np.testing.assert_array_equal(branches.logits(1), before)
        np.testing.assert_array_equal(target.eval_tree(chain_of(tokens, 2)).logits(1), before)
        assert target.graph_rows == ROWS
