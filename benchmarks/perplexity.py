"""Perplexity of a text with native kernels and with llama.cpp's, on the same tokens.

    python benchmarks/perplexity.py model.gguf text.txt --tokens 20000

The text is cut into pieces of 500 tokens; the second half of each is scored, the first is its context.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

from eagle_edge.config import TargetParams
from eagle_edge.kernels import KernelMode
from eagle_edge.target import Target
from eagle_edge.tree import chain

HALF = 250


def loss(target: Target, ids: list[int]) -> float:
    """The mean negative log-likelihood of the second half of each piece of ``ids``."""
    total, count = 0.0, 0
    for first in range(0, len(ids) - 2 * HALF, 2 * HALF):
        target.rewind(0)
        target.prefill(ids[first : first + HALF])
        piece = np.array(ids[first + HALF : first + 2 * HALF], np.int32)
        evaluation = target.eval_tree(chain(int(piece[0]), piece[1:]))
        for node, token in enumerate(piece[1:]):
            row = evaluation.logits(node).astype(np.float64)
            largest = row.max()
            total += largest + math.log(np.exp(row - largest).sum()) - row[token]
            count += 1
        sys.stderr.write(f"\r{count} tokens, perplexity {math.exp(total / count):.4f}")
    sys.stderr.write("\n")
    return total / count


def main() -> None:
    """Print one JSON object: perplexities, their ratio, and the number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens to score")
    parser.add_argument("--threads", type=int, default=TargetParams().n_threads)
    options = parser.parse_args()
    modes: tuple[KernelMode, ...] = ("native", "llama.cpp")
    perplexity: dict[str, float] = {}
    for kernels in modes:
        params = TargetParams(n_ctx=2 * HALF + 12, max_nodes=HALF, kernels=kernels, n_threads=options.threads)
        with Target(options.target, params) as target:
            ids = target.tokenize(options.text.read_text(encoding="utf-8"))[: 2 * options.tokens]
            perplexity[kernels] = math.exp(loss(target, ids))
    ratio = perplexity["native"] / perplexity["llama.cpp"]
    sys.stdout.write(json.dumps({"tokens": len(ids) // 2, **perplexity, "ratio": ratio}) + "\n")


if __name__ == "__main__":
    main()
