"""Whether a tree's rows equal the same tokens evaluated one at a time, for this file and these kernels.

Speculation is lossless only as far as this holds: a row that differs in its last bits can turn the argmax of two close
tokens. It is a property of the weights' types and of the kernels that serve them, so it is measured, not assumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import platformdirs

from .config import TargetParams
from .errors import NativeError
from .kernels import kernel_path
from .target import Evaluation, Target
from .tree import Tree, chain

__all__ = ["Exactness", "Mode", "check", "open_exact"]

Mode = Literal["auto", "strict"]

# Past 256 used cells llama.cpp's CPU attention splits a lone row's cells among its threads (ggml-cpu/ops.cpp,
# use_split_kv_path), so a check that stays below proves little for long texts.
LONG_TEXT = 260


@dataclass(frozen=True, slots=True)
class Exactness:
    """The outcome of ``check``.

    Attributes:
        rows_equal: every compared row was equal bit for bit.
        max_difference: the largest difference between two logits that should be equal.
        n_rows: rows compared.
        n_cells: the longest committed text they were compared after.
    """

    rows_equal: bool
    max_difference: float
    n_rows: int
    n_cells: int

    def __str__(self) -> str:
        if self.rows_equal:
            return f"exact: {self.n_rows} tree rows equal bit for bit after up to {self.n_cells} tokens"
        return f"not exact: tree rows differ by up to {self.max_difference:.2g} from rows evaluated alone"


def check(target: Target, max_seconds: float = 1.0) -> Exactness:
    """Compare a 12-node tree with its paths evaluated one token at a time, after a short text and a long one.

    The long text is tried only while it fits into ``max_seconds``. The target is left empty.
    """
    random = np.random.default_rng(0)
    target.rewind(0)
    differences = [_compare(target, random)]
    start, n_long = time.perf_counter(), min(LONG_TEXT, target.n_ctx - 16)
    while target.n_past < n_long:
        n = min(64, target.params.n_batch, n_long - target.n_past)
        target.prefill(random.integers(0, target.n_vocab, n, dtype=np.int32))
        if time.perf_counter() - start > max_seconds:
            break
    n_cells = target.n_past
    if n_cells >= LONG_TEXT:
        differences.append(_compare(target, random))
    target.rewind(0)
    rows = np.concatenate(differences)
    return Exactness(bool(np.all(rows == 0)), float(rows.max()), len(rows), n_cells if len(differences) == 2 else 0)


# Kernel choices that can make rows equal: let a lone row take a tree's kernels, or forgo re-laid weights.
_ALTERNATIVES: tuple[dict[str, Any], ...] = (
    {"pair_single_row": True},
    {"repack": False},
    {"pair_single_row": True, "repack": False},
)
_LITTLE = 1.15  # the most an exact choice may cost under "auto", as a factor of a round's time


def open_exact(
    path: str | os.PathLike[str], params: TargetParams | None = None, mode: Mode = "auto"
) -> tuple[Target, Exactness]:
    """Open a target with kernels that make tree rows equal lone rows, where there are such.

    Args:
        path: the GGUF file.
        params: how to load it; only its kernel choices are changed.
        mode: "auto" changes them when that costs little, "strict" at any cost.

    Raises:
        NativeError: mode is "strict" and no choice of kernels is exact for this file.
        FileFormatError: as ``Target``.
    """
    params = params or TargetParams()
    target = Target(path, params)
    if not target.can_branch:
        return target, Exactness(True, 0.0, 0, 0)
    found = _remembered(target)
    if found.rows_equal:
        return target, found
    bound = float("inf") if mode == "strict" else _LITTLE * _round_ms(target)
    for change in _ALTERNATIVES:
        other = Target(path, replace(params, **change))
        outcome = check(other)
        if outcome.rows_equal and _round_ms(other) <= bound:
            target.close()
            return other, outcome
        other.close()
    if mode == "strict":
        target.close()
        raise NativeError(
            f"{os.fspath(path)}: no choice of kernels gives rows that do not depend on the tree; use --exact auto"
        )
    return target, found


def _remembered(target: Target) -> Exactness:
    """The outcome of ``check`` for this file, these kernels and this machine: measured once, then read from a file."""
    stat = os.stat(target.path)
    facts = (os.path.realpath(target.path), stat.st_size, stat.st_mtime_ns, kernel_path(), repr(target.params))
    digest = hashlib.sha256(repr((*facts, platform.machine(), platform.node())).encode()).hexdigest()[:24]
    note = Path(platformdirs.user_cache_dir("eagle-edge", appauthor=False)) / f"exactness-{digest}.json"
    try:
        return Exactness(**json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        found = check(target)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a second at the next start
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(asdict(found)), encoding="utf-8")
        partial.replace(note)
    return found


def _round_ms(target: Target) -> float:
    """Milliseconds of a lone row and of a chain of 8, each the least of 9: what other programs do must not decide."""
    target.rewind(0)
    times = np.zeros((9, 2))
    for i in range(len(times)):
        for j, n in enumerate((1, 8)):
            start = time.perf_counter()
            target.eval_tree(chain(0, np.zeros(n - 1, np.int32)))
            times[i, j] = (time.perf_counter() - start) * 1e3
    target.rewind(0)
    return float(times.min(axis=0).sum())


def _compare(target: Target, random: np.random.Generator) -> np.ndarray:
    """[N] the largest difference of each tree row from its lone twin; the committed text is left as it was."""
    base = target.n_past
    parent = np.array([-1, 0, 0, 0, 1, 1, 2, 4, 4, 6, 7, 10], np.int32)
    tokens = random.integers(0, target.n_vocab, len(parent), dtype=np.int32)
    tree = Tree(tokens, parent, np.zeros(len(parent), np.float32))
    evaluation = target.eval_tree(tree)
    in_tree = [evaluation.logits(node) for node in range(len(tree))]
    differences = np.zeros(len(tree), np.float32)
    for leaf in (3, 5, 8, 9, 11):
        for node in tree.path(leaf):
            alone: Evaluation = target.eval_tree(chain(int(tokens[node]), np.empty(0, np.int32)))
            differences[node] = max(differences[node], np.abs(alone.logits(0) - in_tree[node]).max())
            target.commit([0])
        target.rewind(base)
    return differences
