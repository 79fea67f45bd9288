"""``eagle-edge train``: a head for a GGUF, from one command."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import DependencyError
from ..train.recipes import RECIPES
from .options import Json
from .train_progress import TrainProgress

__all__ = ["EPILOG", "train_command"]

EPILOG = """Examples:

eagle-edge train --target model.gguf -o runs/mine --budget 30m

eagle-edge train --target model.gguf -o runs/mine --prompts mine.jsonl --tokens 500000 --questions QUESTIONS --limit 4

eagle-edge train --target finetune.gguf -o runs/adapted --start-from head.gguf --budget 10m

The folder keeps everything: the same command continues a run that was interrupted anywhere, and a longer --budget or
more --tokens go on with one that is finished.
"""

PromptFiles = Annotated[
    list[Path] | None, typer.Option("--prompts", help="A .jsonl or .txt file of prompts; repeatable.")
]
RecipeName = Annotated[
    str,
    typer.Option(
        "--recipe",
        metavar="|".join(RECIPES),
        help=" ".join(f"{name}: {recipe.summary}." for name, recipe in RECIPES.items()),
    ),
]
Sets = Annotated[list[str] | None, typer.Option("--sets", help="Of --questions; repeatable, or several with commas.")]


def train_command(
    target: Annotated[Path, typer.Option("--target", help="The GGUF to train a head for.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run; one that holds a run is continued.")
    ],
    recipe: RecipeName = "eagle3",
    prompts: PromptFiles = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Go on training this head, a GGUF or a checkpoint's folder; it keeps its shape, and of its vocabulary "
            "what is said most often where --draft-vocab is smaller."
        ),
    ] = None,
    own_share: Annotated[float, typer.Option(help="Share of prompts the target writes itself.")] = 0.85,
    budget: Annotated[
        str | None, typer.Option(help="Time for all of it, for example 30m or 2h; the rest follows from it.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Answer tokens to train on.", show_default="1000000, or what the budget allows")
    ] = None,
    temperatures: Annotated[
        str,
        typer.Option(
            help="What the answers are drawn at, in equal shares, for example 0,0.8.",
            show_default="65 % at 0, the rest at 0.6 to 1",
        ),
    ] = "",
    same_noise: Annotated[
        bool,
        typer.Option(
            "--same-noise",
            help="Half of the rows learn what the target draws at temperature 1, by noise that the head gets too: for "
            "heads that are mostly used there.",
        ),
    ] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the data, without a budget.")] = 3,
    online: Annotated[
        bool, typer.Option("--online", help="Store no features: the target reads every batch again. Slower.")
    ] = False,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            help="Tokens the head can propose; 0 for all.", min=0, show_default="as the recipe says; less in < 10m"
        ),
    ] = None,
    tap_layers: Annotated[str | None, typer.Option(help="Boundaries to read, for example 2,15,27 or 27.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps on the head's own outputs; 1 trains without; as the recipe says.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    batch: Annotated[int, typer.Option(help="Answers in a batch.")] = 8,
    patience: Annotated[
        int, typer.Option(help="Stop after so many evaluations without a better acceptance; 0 never does.")
    ] = 12,
    questions: Annotated[
        Path | None, typer.Option(help="A folder of question sets to measure the finished head on.")
    ] = None,
    sets: Sets = None,
    limit: Annotated[int, typer.Option(help="Questions of each set; 0 takes all.")] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a draft head for a GGUF, on what the model itself says."""
    started = time.monotonic()
    try:
        from ..train.finish import read_result
        from ..train.params import DataParams, EvaluationParams, TrainParams
        from ..train.run import train
    except ModuleNotFoundError as error:
        raise DependencyError(f"training needs {error.name}: pip install 'eagle-edge[train]'") from None
    seconds = _seconds(budget)
    if recipe not in RECIPES:
        raise typer.BadParameter(f"--recipe takes {', '.join(RECIPES)}, got {recipe!r}")
    base = RECIPES[recipe]
    if same_noise and recipe == "eagle1":
        raise typer.BadParameter("--same-noise is for EAGLE-3: an EAGLE-1 head learns states above all")
    if start_from is not None and tap_layers is not None:
        raise typer.BadParameter("--start-from takes over the head's shape; leave out --tap-layers")
    start_vocab = 0
    if start_from is not None:
        start_vocab, draft_vocab = draft_vocab or 0, None
    if draft_vocab is None:
        draft_vocab = min(base.head.n_draft_vocab, 4096) if 0 < seconds < 600 else base.head.n_draft_vocab
    if questions is not None and not questions.is_dir():
        raise typer.BadParameter(f"--questions takes a folder of .jsonl files, got {questions}")
    # With a budget the first round has to be short enough to measure speeds on; whole rounds fit any budget.
    per_round = seconds / 2 if seconds else (tokens or 1_000_000) / 200
    params = TrainParams(
        target=str(target),
        output=str(output),
        seed=seed,
        start_from=str(start_from or ""),
        start_vocab=start_vocab,
        recipe=recipe,
        budget_seconds=seconds,
        online=online,
        data=DataParams(
            **_shares(temperatures),
            prompt_files=tuple(map(str, prompts or ())),
            own_share=own_share if prompts else 1.0,
            answer_tokens=tokens or (10**9 if seconds else 1_000_000),
            prompts_per_round=int(min(512, max(16, per_round))),
        ),
        head=dataclasses.replace(
            base.head,
            taps=base.head.taps if tap_layers is None else _numbers(tap_layers),
            n_draft_vocab=draft_vocab,
        ),
        loop=dataclasses.replace(
            base.loop,
            n_steps=base.loop.n_steps if steps is None else steps,
            same_noise=same_noise,
            epochs=epochs,
            patience=patience,
            n_sequences=batch,
            learning_rate=learning_rate,
            report_steps=5,
            n_threads=threads,
        ),
        evaluation=EvaluationParams(
            max_tokens=int(min(96, max(24, seconds / 20))) if seconds else 96,
            questions=str(questions or ""),
            sets=tuple(name for entry in sets or () for name in entry.split(",")),
            limit=limit,
        ),
    )
    try:
        with TrainProgress(sys.stderr) as progress:
            path = train(params, progress, started)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with the run in {output}", file=sys.stderr)
        raise
    if as_json:
        print(json.dumps({name: value for name, value in read_result(output).items() if name != "params"}))
    else:
        print(path)


def _shares(text: str) -> dict[str, Any]:
    """The settings of ``DataParams`` that give every temperature of the list the same share; none for none."""
    if not text:
        return {}
    try:
        listed = [float(part) for part in text.split(",")]
    except ValueError:
        listed = [math.nan]
    if not all(0 <= temperature < math.inf for temperature in listed):
        raise typer.BadParameter(f"--temperatures takes numbers from 0 on, for example 0,0.8, got {text!r}")
    drawn = tuple(temperature for temperature in listed if temperature > 0)
    return {"greedy_share": 1 - len(drawn) / len(listed), "temperatures": drawn or (1.0,)}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--tap-layers takes numbers separated by commas, got {text!r}") from None


def _seconds(text: str | None) -> float:
    if text is None:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"--budget takes a time such as 90s, 30m or 2h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
