"""``eagle-edge train``: a head for a GGUF, from one command."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import DependencyError
from ..train.recipes import RECIPES

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ..train.loop import Report

__all__ = ["train_command"]

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


def train_command(
    target: Annotated[Path, typer.Option("--target", help="The GGUF to train a head for.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run; one that holds a run is continued.")
    ],
    recipe: RecipeName = "eagle3",
    prompts: PromptFiles = None,
    start_from: Annotated[
        Path | None,
        typer.Option(help="Go on training this head, a GGUF or a checkpoint's folder; it keeps shape and vocabulary."),
    ] = None,
    own_share: Annotated[float, typer.Option(help="Share of prompts the target writes itself.")] = 0.85,
    tokens: Annotated[int, typer.Option(help="Answer tokens to train on.")] = 1_000_000,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 3,
    budget: Annotated[str | None, typer.Option(help="Train for so long instead, for example 30m or 2h.")] = None,
    draft_vocab: Annotated[int | None, typer.Option(help="Tokens the head can propose; as the recipe says.")] = None,
    tap_layers: Annotated[str | None, typer.Option(help="Boundaries to read, for example 2,15,27 or 27.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps on the head's own outputs; 1 trains without; as the recipe says.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    batch: Annotated[int, typer.Option(help="Answers in a batch.")] = 8,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
) -> None:
    """Train a draft head for a GGUF, on what the model itself says."""
    try:
        from ..train.params import DataParams, TrainParams
        from ..train.run import train
    except ModuleNotFoundError as error:
        raise DependencyError(f"training needs {error.name}: pip install 'eagle-edge[train]'") from None
    if recipe not in RECIPES:
        raise typer.BadParameter(f"--recipe takes {', '.join(RECIPES)}, got {recipe!r}")
    base = RECIPES[recipe]
    head = dataclasses.replace(
        base.head,
        taps=base.head.taps if tap_layers is None else _numbers(tap_layers),
        n_draft_vocab=base.head.n_draft_vocab if draft_vocab is None else draft_vocab,
    )
    params = TrainParams(
        target=str(target),
        output=str(output),
        seed=seed,
        start_from=str(start_from or ""),
        recipe=recipe,
        data=DataParams(
            prompt_files=tuple(map(str, prompts or ())),
            own_share=own_share if prompts else 1.0,
            answer_tokens=tokens,
            prompts_per_round=min(512, max(16, tokens // 200)),
        ),
        head=head,
        loop=dataclasses.replace(
            base.loop,
            n_steps=base.loop.n_steps if steps is None else steps,
            epochs=epochs,
            budget_seconds=_seconds(budget),
            n_sequences=batch,
            learning_rate=learning_rate,
            n_threads=threads,
        ),
    )
    with _Lines() as progress:
        path = train(params, progress)
    print(path)


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


class _Lines:
    """Progress on standard error: a line for each stage, with the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(file=sys.stderr),
        )
        self._tasks: dict[str, TaskID] = {}
        self._acceptance = ""

    def __enter__(self) -> _Lines:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def stage(self, name: str, done: float, text: str) -> None:
        """Show how far a stage is."""
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=1.0, text=text)
        self._bar.update(self._tasks[name], completed=done, text=text)

    def report(self, report: Report) -> None:
        """Show where the training loop is."""
        if report.acceptance is not None:
            self._acceptance = " ".join(f"{rate:.2f}" for rate in report.acceptance.first)
        text = f"loss {report.loss:.3f}" if report.loss == report.loss else ""
        self.stage(
            "training", report.done, f"{text}  acceptance by depth {self._acceptance}" if self._acceptance else text
        )
