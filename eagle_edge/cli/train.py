"""``eagle-edge train``: a head for a GGUF, from one command."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ..errors import DependencyError
from ..train.params import TrainParams
from . import options as o
from .train_options import AnswerOptions, HeadOptions, LoopOptions, MeasureOptions, parse_budget
from .train_progress import TrainProgress

__all__ = ["EPILOG", "train_command"]

EPILOG = """Examples:

eagle-edge train --target model.gguf -o runs/mine --budget 30m

eagle-edge train --target model.gguf -o runs/mine --prompts mine.jsonl --tokens 500000 --questions QUESTIONS --limit 4

eagle-edge train --target finetune.gguf -o runs/adapted --start-from head.gguf --budget 10m

The folder keeps everything: the same command continues a run that was interrupted anywhere, and a longer --budget or
more --tokens go on with one that is finished.
"""


@o.command
def train_command(
    target: Annotated[Path, typer.Option("--target", help="The GGUF to train a head for.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run; one that holds a run is continued.")
    ],
    budget: Annotated[
        str | None, typer.Option(help="Time for all of it, for example 30m or 2h; the rest follows from it.")
    ] = None,
    *,
    head: HeadOptions,
    answers: AnswerOptions,
    loop: LoopOptions,
    online: Annotated[
        bool, typer.Option("--online", help="Store no features: the target reads every batch again. Slower.")
    ] = False,
    measure: MeasureOptions,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    as_json: o.Json = False,
) -> None:
    """Train a draft head for a GGUF, on what the model itself says."""
    started = time.monotonic()
    try:
        from ..train.finish import read_result
        from ..train.run import train
    except ModuleNotFoundError as error:
        raise DependencyError(f"training needs {error.name}: pip install 'eagle-edge[train]'") from None
    seconds = parse_budget(budget)
    params = TrainParams(
        target=str(target),
        output=str(output),
        seed=seed,
        start_from=str(head.start_from or ""),
        start_vocab=head.start_vocab(),
        recipe=head.recipe,
        budget_seconds=seconds,
        online=online,
        head=head.params(seconds),
        data=answers.params(seconds),
        loop=loop.params(head.find_recipe()),
        evaluation=measure.params(seconds),
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
