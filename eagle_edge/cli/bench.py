"""``eagle-edge bench``: plain against drafted decoding, interleaved, per question set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ..bench import Row
from ..neighbours import busy_neighbours
from ..questions import load_questions
from ..replay import SWEEP, compare, load_curve, load_records, record, save_records
from . import options as o
from .rows import bench_rows
from .session import open_session, stderr
from .verify import Limit, Sets


@o.command
def bench(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Question sets (*.jsonl); with --replay a recorded run, with --rows models (*.gguf)."),
    ] = None,
    sets: Sets = "",
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Tokens for each question.")] = 128,
    neighbours: Annotated[int, typer.Option("--neighbours", help="Busy processes beside the measurement.", min=0)] = 0,
    rows: Annotated[bool, typer.Option("--rows", help="Time evaluations of n rows with both CPU kernels.")] = False,
    limits: Annotated[bool, typer.Option("--limits", help="With --rows: what memory and arithmetic allow.")] = False,
    record_to: Annotated[
        Path | None, typer.Option("--record", help="Write what the head drafts at every position to this file.")
    ] = None,
    curve: Annotated[
        Path | None, typer.Option("--replay", help="Replay a recorded run on the costs in this JSON file.")
    ] = None,
    *,
    pair: o.PairOptions,
    loading: o.TargetOptions,
    drafting: o.DraftOptions,
    sampling: o.SamplingOptions,
    as_json: o.Json = False,
) -> None:
    """Time both ways of every question in turn; ratios are medians of pairs, with the 10th and 90th percentile."""
    if rows:
        bench_rows(folder or pair.files()[0], loading.threads, limits, as_json)
        return
    if folder is None:
        raise typer.BadParameter("name a folder of question sets, or ask for --rows")
    if curve is not None:
        _replay(folder, curve, as_json)
        return
    questions = load_questions(folder, [name for name in sets.split(",") if name], limit)
    params = replace(sampling, seed=sampling.seed or 0).params(max_tokens)
    table: dict[str, Row] = {}
    with open_session(pair, loading, drafting) as session:
        if session.engine.draft is None:
            raise ValueError("there is nothing to compare without a head; name one with --head")
        if record_to is not None:
            prompts = [session.encode([{"role": "user", "content": question.text}]) for question in questions]
            steps = track(prompts, description="recording", console=stderr)
            save_records(record_to, (record(session.engine, ids, params) for ids in steps))
            return
        with busy_neighbours(neighbours):
            for question in track(questions, description="timing", console=stderr):
                ids = session.encode([{"role": "user", "content": question.text}])
                table.setdefault(question.set, Row(question.set)).run(session.engine, ids, params)
    reports = [row.as_dict() for row in table.values()]
    if as_json:
        print(json.dumps(reports))
    else:
        Console().print(_table(reports))


def _replay(run: Path, curve: Path, as_json: bool) -> None:
    rows = compare(load_records(run), load_curve(curve), SWEEP)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(title=f"{run.name} on the costs of {curve.name}")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


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
