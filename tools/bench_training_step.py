"""Where the time of a training step goes, on the data of a run: matrix products, the rest, and this machine's peak.

python tools/bench_training_step.py RUN_FOLDER [--steps 8] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from eagle_edge.train.answers import finished_shards
from eagle_edge.train.loop import Trainer
from eagle_edge.train.model import Head
from eagle_edge.train.params import TrainParams
from eagle_edge.train.run import head_config
from eagle_edge.train.shards import Corpus
from eagle_edge.train.target_weights import read_target_weights
from eagle_edge.train.vocabulary import Vocabulary

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled", "aten::mkldnn_linear")


def trainer_of(run: Path, scratch: Path) -> Trainer:
    """A trainer with a random head on the answers of ``run``."""
    params = TrainParams.load(run / "params.json")
    target = read_target_weights(Path(params.target))
    stored = json.loads((run / "vocabulary.json").read_text(encoding="utf-8"))
    vocabulary = Vocabulary(np.array(stored["ids"], np.int64), target.n_vocab, stored["coverage"])
    taps = params.head.taps or (2, target.n_layer // 2, target.n_layer - 3)
    head = Head(head_config(params, taps, target, len(vocabulary.ids)), target.embedding, target.output)
    return Trainer(head, Corpus(finished_shards(run / "shards")), vocabulary, params.loop, 0, scratch)


def peak() -> float:
    """FLOP/s of a large bfloat16 product, the best of a few."""
    a, b = torch.randn(2048, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()
    best = float("inf")
    for _ in range(8):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * 2048**3 / best


def main() -> None:
    """Print a table of the operations that take longest, and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trainer_of(args.run, Path(scratch))
        speed = trainer.speed(args.steps)
        with profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiler:
            started = time.perf_counter()
            trainer.speed(args.steps)
            spent = time.perf_counter() - started
    own: dict[str, float] = defaultdict(float)
    flops = 0.0
    for event in profiler.key_averages():
        own[event.key] += event.self_cpu_time_total / 1e6
        flops += event.flops if event.key in PRODUCTS else 0
    total, products = sum(own.values()), sum(own[name] for name in PRODUCTS)
    for name, seconds in sorted(own.items(), key=lambda item: -item[1])[:14]:
        print(f"{seconds / total:6.1%}  {name}")
    best = peak()
    print(f"{speed:.0f} answer tokens/s; matrix products take {products / total:.0%} of the time")
    print(
        f"{flops / products / 1e9:.0f} GFLOP/s in them, {flops / spent / 1e9:.0f} over the step, peak {best / 1e9:.0f}"
    )


if __name__ == "__main__":
    main()
