"""``eagle-edge bench``: plain and drafted decoding, and whoever else is named, in turn, per question set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, track

from ..bench.comparison import Comparison
from ..bench.meters import read_bandwidth, weight_bytes
from ..bench.ours import Ours
from ..bench.padding import padded_prompts
from ..bench.picture import check_drawing, draw
from ..bench.python_rival import PythonRival
from ..bench.runs import Contender, Prompt
from ..bench.server_rival import ServerRival
from ..config import DraftParams, SamplingParams
from ..neighbours import busy_neighbours
from ..questions import Question, load_questions
from ..replay import SWEEP, compare, load_curve, load_records, record, save_records
from . import options as o
from .bench_tables import comparison_table, replay_table
from .rows import bench_rows
from .session import Session, open_session, stderr
from .verify import Limit, Sets

Against = Annotated[
    list[str] | None,
    typer.Option(
        help='Also time "llama-cpp-python", or the server at a URL that speaks OpenAI\'s chat completions '
        "(NAME=URL names it in the table). Repeatable.",
        metavar="llama-cpp-python|URL",
    ),
]


@o.command
def bench(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Question sets (*.jsonl); with --replay a recorded run, with --rows models (*.gguf)."),
    ] = None,
    sets: Sets = "",
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Tokens for each question.", min=1)] = 128,
    against: Against = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also time the head without repetitions, and fixed chains and trees.")
    ] = False,
    context: Annotated[
        list[int] | None,
        typer.Option(help="Pad prompts to this many tokens with other questions; 0 leaves them. Repeatable.", min=0),
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help="Several temperatures in turn, comma-separated.", show_default="--temperature")
    ] = "",
    png: Annotated[Path | None, typer.Option("--png", help="Draw the table into this file.")] = None,
    neighbours: Annotated[int, typer.Option("--neighbours", help="Busy processes beside the measurement.", min=0)] = 0,
    rows: Annotated[bool, typer.Option("--rows", help="Time evaluations of n rows with both CPU kernels.")] = False,
    limits: Annotated[bool, typer.Option("--limits", help="With --rows: what memory and arithmetic allow.")] = False,
    record_to: Annotated[
        Path | None, typer.Option("--record", help="Write what the head drafts at every position to this file.")
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            "--replay", help="Replay a recorded run on a file of costs, or on a named machine's: rtx-4090-1b-q4_0, ..."
        ),
    ] = None,
    *,
    pair: o.PairOptions,
    loading: o.TargetOptions,
    drafting: o.DraftOptions,
    sampling: o.SamplingOptions,
    as_json: o.Json = False,
) -> None:
    """Time everybody on every question in turn; ratios are medians over questions, with 10th and 90th percentile.

    Tokens/s count from the first token on. "of limit" is the share of what reading the weights alone would allow at the
    same tau.

    eagle-edge bench QUESTIONS --limit 4 --against llama-cpp-python --against http://127.0.0.1:8080 --temperatures 0,1
    """
    if rows:
        bench_rows(folder or pair.files()[0], loading.threads, limits, as_json)
        return
    if folder is None:
        raise typer.BadParameter("name a folder of question sets, or ask for --rows")
    if curve is not None:
        _replay(folder, curve, limit, as_json)
        return
    if png is not None:
        check_drawing(png)
    questions = load_questions(folder, [name for name in sets.split(",") if name], limit)
    params = replace(sampling, seed=sampling.seed or 0).params(max_tokens)
    contexts = context or [0]
    loading = replace(loading, n_ctx=max(loading.n_ctx, max(contexts) + max_tokens + 64) if loading.n_ctx else 0)
    with open_session(pair, loading, drafting) as session, ExitStack() as rivals:
        if session.engine.draft is None and not against:
            raise ValueError("there is nothing to compare without a head; name one with --head")
        prompts = _prompts(session, questions, contexts)
        if record_to is not None:
            steps = track([prompt.ids for prompt in prompts], description="recording", console=stderr)
            save_records(record_to, (record(session.engine, ids, params) for ids in steps))
            return
        contenders: list[Contender] = [*_ours(session, sweep)]
        for name in against or ():
            contenders.append(rivals.enter_context(closing(_rival(name, pair, loading))))
        with busy_neighbours(neighbours):
            table = _measure(contenders, prompts, params, _numbers(temperatures) or [params.temperature], pair, loading)
    if as_json:
        print(json.dumps(table))
    else:
        Console(width=200 if not Console().is_terminal else None).print(comparison_table(table))
    if png is not None:
        draw(table, png)


def _measure(
    contenders: Sequence[Contender],
    prompts: Sequence[Prompt],
    params: SamplingParams,
    temperatures: Sequence[float],
    pair: o.PairOptions,
    loading: o.TargetOptions,
) -> list[dict[str, Any]]:
    n_bytes, n_threads = weight_bytes(pair.files()[0]), loading.params().n_threads
    comparison = Comparison(contenders, read_bandwidth(n_bytes, n_threads) / n_bytes)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=stderr) as progress:
        task = progress.add_task("warming up", total=len(prompts) * len(temperatures) * len(contenders) + 1)

        def told(name: str) -> None:
            progress.update(task, advance=1, description=f"timing {name}")

        comparison.warm_up(prompts[0], params)
        comparison.run(prompts, params, temperatures, told)
        # What other programs took away at one time is no limit.
        comparison.bound = max(comparison.bound, read_bandwidth(n_bytes, n_threads) / n_bytes)
        progress.update(task, advance=1)
    return comparison.rows()


def _prompts(session: Session, questions: Sequence[Question], contexts: Sequence[int]) -> list[Prompt]:
    target = session.engine.target
    trained = target.n_ctx_train
    if max(contexts) > trained:
        stderr.print(f"the model was trained on {trained} tokens; beyond them its text, and so tau, means little")
    return padded_prompts(
        questions,
        contexts,
        lambda text: session.encode([{"role": "user", "content": text}]),
        lambda text: target.tokenize(text, add_special=False),
        lambda ids: b"".join(target.piece(i) for i in ids).decode(errors="ignore"),
    )


def _ours(session: Session, sweep: bool) -> list[Ours]:
    engine = session.engine
    ways = {"plain": DraftParams(total=1), "drafted": engine.draft_params}
    if engine.draft_params.automatic and sweep:
        ways["head alone"] = replace(engine.draft_params, repetitions=False)
        ways |= {_name(params): params for params in SWEEP}
    with stderr.status("waiting until the weights have their large pages"):
        return [Ours(name, engine, params) for name, params in ways.items()]


def _name(params: DraftParams) -> str:
    return f"chain {params.total - 1}" if params.top_k == 1 else f"{params.total}/{params.depth}/{params.top_k}"


def _rival(name: str, pair: o.PairOptions, loading: o.TargetOptions) -> Contender:
    if name == PythonRival.name:
        rival = PythonRival(pair.files()[0], loading.n_ctx, loading.params().n_threads, loading.n_gpu_layers)
        if rival.note:
            stderr.print(rival.note)
        return rival
    if "://" not in name:
        raise typer.BadParameter(f"--against takes {PythonRival.name}, a URL or NAME=URL, got {name!r}")
    return ServerRival(name)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise typer.BadParameter(f"--temperatures takes numbers, for example 0,1, got {text!r}") from None


def _replay(run: Path, curve: Path, limit: int | None, as_json: bool) -> None:
    machine = load_curve(curve)
    rows = compare(load_records(run)[:limit], machine, SWEEP)
    if as_json:
        print(json.dumps(rows))
    else:
        Console().print(replay_table(rows, f"{run.name} on the costs of {curve.name}"))
