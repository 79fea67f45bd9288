"""How fast a target writes training data: many answers at once against one at a time, and where the time goes.

python tools/bench_training_data.py [--target MODEL.gguf] [--streams 96] [--seconds 20]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from eagle_edge.config import TargetParams
from eagle_edge.models import default_target
from eagle_edge.target import Evaluation, Target
from eagle_edge.template import ChatTemplate
from eagle_edge.train.prompts import OPENERS
from eagle_edge.train.streams import Job, run_jobs

N_LIKELY = 32
N_CTX = 400


def jobs(template: ChatTemplate) -> Iterator[Job]:
    """Answers of at most 128 tokens to short prompts, without end."""
    number = 0
    while True:
        prompt = f"{OPENERS[number % len(OPENERS)]} {OPENERS[(7 * number + 3) % len(OPENERS)].lower()}"
        ids = template.encode([{"role": "user", "content": prompt}])
        yield Job(number, ids, len(ids), 128, 0.0, np.random.default_rng(number))
        number += 1


def measure(path: Path, n_streams: int, seconds: float) -> dict[str, float]:
    """Generated tokens a second, all evaluated tokens a second (prompts too), and the share of time in evaluations."""
    settings = TargetParams(n_ctx=N_CTX, max_nodes=n_streams, streams=True, make_room=False)
    with Target(path, settings) as target:
        target.set_taps((2, target.n_layer // 2, target.n_layer - 3))
        evaluate, evaluating, generated_n, evaluated_n = target.eval_streams, 0.0, 0, 0

        def counted(tokens: Sequence[int], streams: Sequence[int], want_logits: Sequence[bool]) -> Evaluation:
            nonlocal evaluating, generated_n, evaluated_n
            evaluation = evaluate(tokens, streams, want_logits)
            evaluating += evaluation.ms / 1e3
            generated_n += sum(want_logits)
            evaluated_n += len(tokens)
            return evaluation

        target.eval_streams = counted  # type: ignore[method-assign]
        started = time.perf_counter()
        for _ in run_jobs(target, jobs(ChatTemplate.of(target)), N_LIKELY):
            spent = time.perf_counter() - started
            if spent > seconds:
                break
    return {"generated/s": generated_n / spent, "evaluated/s": evaluated_n / spent, "evaluating": evaluating / spent}


def main() -> None:
    """Print one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=default_target())
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 96])
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    for n_streams in args.streams:
        found = measure(args.target, n_streams, args.seconds)
        print(f"{n_streams:4} at once  " + "  ".join(f"{name} {value:.3g}" for name, value in found.items()))


if __name__ == "__main__":
    main()
