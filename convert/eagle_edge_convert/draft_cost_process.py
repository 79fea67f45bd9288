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
    """The fastest of ``N_TURNS`` evaluations, by file and rows: what other programs disturb least."""
    params = TargetParams(n_ctx=N_PAST + 32, n_batch=N_PAST, max_nodes=max(job["rows"]))
    targets = [Target(file, params) for file in job["files"]]
    ms = np.full((len(targets), len(job["rows"])), np.inf)
    for target in targets:
        target.prefill(np.arange(N_PAST, dtype=np.int32) % target.n_vocab)
    for _ in range(N_TURNS):
        for i, target in enumerate(targets):
            for j, n in enumerate(job["rows"]):
                ms[i, j] = min(ms[i, j], target.eval_tree(chain(0, np.zeros(n - 1, np.int32))).ms)
    for target in targets:
        target.close()
    return {"ms": ms.tolist(), "kernels": kernel_path()}


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    try:
        _answer = run(_job)
    except EagleEdgeError as _error:
        _answer = {"error": str(_error)}
    Path(_job["answer"]).write_text(json.dumps(_answer))
