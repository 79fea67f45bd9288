"""The options of ``eagle-edge train`` in groups; each group gives one part of the run's settings."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..train.params import DataParams, EvaluationParams, HeadParams, LoopParams
from ..train.recipes import RECIPES, Recipe

__all__ = ["AnswerOptions", "HeadOptions", "LoopOptions", "MeasureOptions", "parse_budget"]

_USUAL_TOKENS = 1_000_000
_NO_LIMIT = 10**9  # the budget ends the answers
_SHORT = 600.0  # seconds of a budget that a small draft vocabulary suits better
_SHORT_VOCAB = 4096


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What kind of head is trained, and from what."""

    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            metavar="|".join(RECIPES),
            help=" ".join(f"{name}: {recipe.summary}." for name, recipe in RECIPES.items()),
        ),
    ] = "eagle3"
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Go on training this head, a GGUF or a checkpoint's folder; it keeps its shape, and of its vocabulary "
            "what is said most often where --draft-vocab is smaller."
        ),
    ] = None
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            help="Tokens the head can propose; 0 for all.", min=0, show_default="as the recipe says; less in < 10m"
        ),
    ] = None
    tap_layers: Annotated[str | None, typer.Option(help="Boundaries to read, for example 2,15,27 or 27.")] = None

    def find_recipe(self) -> Recipe:
        """The recipe.

        Raises:
            typer.BadParameter: there is none of that name, or the options exclude each other.
        """
        if self.recipe not in RECIPES:
            raise typer.BadParameter(f"--recipe takes {', '.join(RECIPES)}, got {self.recipe!r}")
        if self.start_from is not None and self.tap_layers is not None:
            raise typer.BadParameter("--start-from takes over the head's shape; leave out --tap-layers")
        return RECIPES[self.recipe]

    def start_vocab(self) -> int:
        """Tokens kept of the head to start from; 0 keeps all of them, or there is no such head."""
        return 0 if self.start_from is None else self.draft_vocab or 0

    def params(self, budget: float) -> HeadParams:
        """The shape of a new head, for a run of ``budget`` seconds, 0 for no limit."""
        usual = self.find_recipe().head
        vocab = None if self.start_from is not None else self.draft_vocab
        if vocab is None:
            vocab = min(usual.n_draft_vocab, _SHORT_VOCAB) if 0 < budget < _SHORT else usual.n_draft_vocab
        taps = usual.taps if self.tap_layers is None else _numbers(self.tap_layers)
        return dataclasses.replace(usual, taps=taps, n_draft_vocab=vocab)


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """What the target is asked, and how it answers."""

    prompts: Annotated[
        list[Path] | None, typer.Option("--prompts", help="A .jsonl or .txt file of prompts; repeatable.")
    ] = None
    own_share: Annotated[float, typer.Option(help="Share of prompts the target writes itself.")] = 0.85
    tokens: Annotated[
        int | None, typer.Option(help="Answer tokens to train on.", show_default="1000000, or what the budget allows")
    ] = None
    temperatures: Annotated[
        str,
        typer.Option(
            help="What the answers are drawn at, in equal shares, for example 0,0.8.",
            show_default="65 % at 0, the rest at 0.6 to 1",
        ),
    ] = ""

    def params(self, budget: float) -> DataParams:
        """The answers of a run of ``budget`` seconds, 0 for no limit."""
        # With a budget the first round has to be short enough to measure speeds on; whole rounds fit any budget.
        per_round = budget / 2 if budget else (self.tokens or _USUAL_TOKENS) / 200
        return DataParams(
            **self.shares(),
            prompt_files=tuple(map(str, self.prompts or ())),
            own_share=self.own_share if self.prompts else 1.0,
            answer_tokens=self.tokens or (_NO_LIMIT if budget else _USUAL_TOKENS),
            prompts_per_round=int(min(512, max(16, per_round))),
        )

    def shares(self) -> dict[str, Any]:
        """The settings of ``DataParams`` that give every temperature of the list the same share; none for none."""
        if not self.temperatures:
            return {}
        try:
            listed = [float(part) for part in self.temperatures.split(",")]
        except ValueError:
            listed = [math.nan]
        if not all(0 <= temperature < math.inf for temperature in listed):
            raise typer.BadParameter(
                f"--temperatures takes numbers from 0 on, for example 0,0.8, got {self.temperatures!r}"
            )
        drawn = tuple(temperature for temperature in listed if temperature > 0)
        return {"greedy_share": 1 - len(drawn) / len(listed), "temperatures": drawn or (1.0,)}


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """How the head is optimised."""

    same_noise: Annotated[
        bool,
        typer.Option(
            "--same-noise",
            help="Half of the rows learn what the target draws at temperature 1, by noise that the head gets too: for "
            "heads that are mostly used there.",
        ),
    ] = False
    epochs: Annotated[int, typer.Option(help="Passes over the data, without a budget.")] = 3
    steps: Annotated[
        int | None, typer.Option(help="Steps on the head's own outputs; 1 trains without; as the recipe says.")
    ] = None
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3
    batch: Annotated[int, typer.Option(help="Answers in a batch.")] = 8
    patience: Annotated[
        int, typer.Option(help="Stop after so many evaluations without a better acceptance; 0 never does.")
    ] = 12
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0

    def params(self, recipe: Recipe) -> LoopParams:
        """The optimisation of a head of this recipe."""
        if self.same_noise and recipe.head.kind == "eagle1":
            raise typer.BadParameter("--same-noise is for EAGLE-3: an EAGLE-1 head learns states above all")
        return dataclasses.replace(
            recipe.loop,
            n_steps=recipe.loop.n_steps if self.steps is None else self.steps,
            same_noise=self.same_noise,
            epochs=self.epochs,
            patience=self.patience,
            n_sequences=self.batch,
            learning_rate=self.learning_rate,
            report_steps=5,
            n_threads=self.threads,
        )


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What the finished head is measured on."""

    questions: Annotated[
        Path | None, typer.Option(help="A folder of question sets to measure the finished head on.")
    ] = None
    sets: Annotated[
        list[str] | None, typer.Option("--sets", help="Of --questions; repeatable, or several with commas.")
    ] = None
    limit: Annotated[int, typer.Option(help="Questions of each set; 0 takes all.")] = 0

    def params(self, budget: float) -> EvaluationParams:
        """The measurement that a run of ``budget`` seconds, 0 for no limit, has time for."""
        if self.questions is not None and not self.questions.is_dir():
            raise typer.BadParameter(f"--questions takes a folder of .jsonl files, got {self.questions}")
        return EvaluationParams(
            max_tokens=int(min(96, max(24, budget / 20))) if budget else 96,
            questions=str(self.questions or ""),
            sets=tuple(name for entry in self.sets or () for name in entry.split(",")),
            limit=self.limit,
        )


def parse_budget(text: str | None) -> float:
    """Seconds of a budget such as 90s, 30m or 2h; 0 without one."""
    if text is None:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"--budget takes a time such as 90s, 30m or 2h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--tap-layers takes numbers separated by commas, got {text!r}") from None
