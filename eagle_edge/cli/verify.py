"""``eagle-edge verify``: drafted text against plain text over a folder of questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from ..equality import compare
from ..questions import load_questions
from . import options as o
from .session import open_session, stderr

Folder = Annotated[Path, typer.Argument(help="A folder of question sets (*.jsonl).")]
Sets = Annotated[str, typer.Option("--sets", help="Only these sets, comma-separated.", show_default="all")]
Limit = Annotated[int | None, typer.Option("--limit", help="Only the first N questions of each set.", min=1)]


@o.command
def verify(
    folder: Folder,
    sets: Sets = "",
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Tokens for each question.")] = 128,
    *,
    pair: o.PairOptions,
    loading: o.TargetOptions,
    drafting: o.DraftOptions,
    sampling: o.SamplingOptions,
    as_json: o.Json = False,
) -> None:
    """Generate every question plainly and drafted, and report each token that differs. Exit code 1 if any does."""
    if sampling.temperature > 0 and sampling.seed is None:
        raise ValueError("at a temperature above 0 two texts are comparable only with a --seed")
    questions = load_questions(folder, [name for name in sets.split(",") if name], limit)
    params = sampling.params(max_tokens)
    mismatches, n_tokens = [], 0
    with open_session(pair, loading, drafting) as session:
        if session.engine.draft is None:
            raise ValueError("there is nothing to verify without a head; name one with --head")
        for question in track(questions, description="verifying", console=stderr):
            ids = session.encode([{"role": "user", "content": question.text}])
            n, mismatch = compare(session.engine, (question.set, question.number), ids, params)
            n_tokens += n
            if mismatch is not None:
                mismatches.append(mismatch)
        is_exact = session.exact
    if as_json:
        report = {"prompts": len(questions), "tokens": n_tokens, "mismatches": len(mismatches)}
        print(json.dumps({**report, "mismatch_list": [m.as_dict() for m in mismatches], "exact": is_exact}))
    else:
        for m in mismatches:
            print(
                f"{m.set} {m.number}: token {m.position} is {m.drafted}, plainly {m.plain}; "
                f"the two best are {m.top2_gap:.2g} apart"
            )
        print(f"{len(questions)} prompts, {n_tokens} tokens, {len(mismatches)} mismatches; {session.engine.exactness}")
    if mismatches:
        raise typer.Exit(1)
