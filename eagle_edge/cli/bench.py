"""``eagle-edge bench``: plain against drafted decoding, interleaved, per question set."""

from __future__ import annotations

import json
from dataclasses import replace
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


@o.command
def bench(
    folder: Folder,
    sets: Sets = "",
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Tokens for each question.")] = 128,
    neighbours: Annotated[int, typer.Option("--neighbours", help="Busy processes beside the measurement.", min=0)] = 0,
    *,
    pair: o.PairOptions,
    loading: o.TargetOptions,
    drafting: o.DraftOptions,
    sampling: o.SamplingOptions,
    as_json: o.Json = False,
) -> None:
    """Time both ways of every question in turn; ratios are medians of pairs, with the 10th and 90th percentile."""
    questions = load_questions(folder, [name for name in sets.split(",") if name], limit)
    params = replace(sampling, seed=sampling.seed or 0).params(max_tokens)
    rows: dict[str, Row] = {}
    with open_session(pair, loading, drafting) as session:
        if session.engine.draft is None:
            raise ValueError("there is nothing to compare without a head; name one with --head")
        with busy_neighbours(neighbours):
            for question in track(questions, description="timing", console=stderr):
                ids = session.encode([{"role": "user", "content": question.text}])
                rows.setdefault(question.set, Row(question.set)).run(session.engine, ids, params)
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
