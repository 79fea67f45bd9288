"""Times evaluations of models, in turns; started by ``draft_cost.measure_draft_cost``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from eagle_edge.config import TargetParams
from eagle_edge.errors import EagleEdgeError
from eagle_edge.kernels import kernel_path
from eagle_edge.target import Target
from eagle_edge.tree import chain

N_PAST = 200
N_TURNS = 15


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds [turns, files, rows] of evaluations with 200 tokens of context, and the kernels that ran."""
    params = TargetParams(n_ctx=N_PAST + 32, n_batch=N_PAST, max_nodes=max(job["rows"]), kernels=job["kernels"])
    targets = [Target(file, params) for file in job["files"]]
    for target in targets:
        target.prefill(np.arange(N_PAST, dtype=np.int32) % target.n_vocab)
    trees = [chain(0, np.zeros(n - 1, np.int32)) for n in job["rows"]]
    ms = [[[target.eval_tree(tree).ms for tree in trees] for target in targets] for _ in range(N_TURNS + 1)]
    for target in targets:
        target.close()
    return {"ms": ms[1:], "kernels": kernel_path()}  # the first turn warms up


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    try:
        _answer = run(_job)
    except EagleEdgeError as _error:
        _answer = {"error": str(_error)}
    Path(_job["answer"]).write_text(json.dumps(_answer))
