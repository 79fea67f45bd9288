"""``eagle-edge bench``: plain against drafted decoding, interleaved, per question set."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ..bench import Row
from ..neighbours import busy_neighbours
from ..questions import load_questions
from . import options as o
from .session import open_session, stderr
from .verify import Folder, Limit, Sets


def bench(
    folder: Folder,
    sets: Sets = "",
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Tokens for each question.")] = 128,
    neighbours: Annotated[int, typer.Option("--neighbours", help="Busy processes beside the measurement.", min=0)] = 0,
    target: o.Target = None,
    head: o.Head = None,
    chain: o.Chain = None,
    tree: o.TreeOption = None,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = None,
    n_ctx: o.NCtx = 4096,
    n_gpu_layers: o.NGpuLayers = 0,
    threads: o.Threads = None,
    kernels: o.Kernels = "auto",
    exact: o.Exact = "auto",
    as_json: o.Json = False,
) -> None:
    """Time both ways of every question in turn; ratios are medians of pairs, with the 10th and 90th percentile."""
    questions = load_questions(folder, [name for name in sets.split(",") if name], limit)
    params = o.sampling_params(temperature, top_k, top_p, min_p, 0 if seed is None else seed, max_tokens)
    draft = o.draft_params(chain, tree)
    rows: dict[str, Row] = {}
    with open_session(
        o.find_pair(target, head), o.target_params(n_ctx, n_gpu_layers, threads, kernels), exact, draft
    ) as session:
        if session.engine.draft is None:
            raise ValueError("there is nothing to compare without a head; name one with --head")
        with busy_neighbours(neighbours):
            for question in track(questions, description="timing", console=stderr):
                ids = session.encode([{"role": "user", "content": question.text}])
                rows.setdefault(question.set, Row(question.set)).run(session.engine, ids, params, draft)
    reports = [row.as_dict() for row in rows.values()]
    if as_json:
        print(json.dumps(reports))
    else:
        Console().print(_table(reports))


def _table(reports: list[dict[str, object]]) -> Table:
    table = Table(title="tokens/s, plain against drafted")
    columns = (
        "set",
        "prompts",
        "plain_tps",
        "draft_tps",
        "speedup",
        "speedup_spread",
        "tau",
        "accept_by_depth",
        "share",
    )
    for column in columns:
        table.add_column(column)
    for report in reports:
        table.add_row(*(_cell(report[column]) for column in columns))
    return table


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {share:.0%}" for name, share in value.items())
    if isinstance(value, list):
        return " ".join(f"{number:.2f}" for number in value)
    return str(value)
