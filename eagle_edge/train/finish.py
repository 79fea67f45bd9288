"""The end of a run: the best weights as a checkpoint and GGUF files, measured through the engine, plots and a card."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle_edge_convert import convert_head

from .budget import Clock
from .card import write_card
from .evaluate import SHAPES, Examiner, held_out_prompts
from .export import export_checkpoint
from .loop import Trainer
from .params import TrainParams
from .plots import write_plots

__all__ = ["FILES", "Probe", "finish", "is_finished", "read_result"]

#: The GGUF of each type that a run leaves.
FILES = {"q8_0": "head-q8_0.gguf", "f16": "head-f16.gguf", "q4_0": "head-q4_0.gguf"}
RESULT = "figures.json"
# Seconds for each part of the evaluation of a run without a budget.
UNHURRIED = 600.0
# A probe may take this share of the training so far; the first is taken to cost so many seconds.
PROBE_SHARE, FIRST_PROBE_SECONDS = 0.03, 8.0
PROBE_PROMPTS, PROBE_TOKENS = 4, 48


def is_finished(folder: Path, params: TrainParams) -> bool:
    """Whether the folder holds the result of just these settings."""
    result = read_result(folder)
    return result.get("params") == _as_json(params) and all((folder / name).exists() for name in FILES.values())


def read_result(folder: Path) -> dict[str, Any]:
    """The figures of a finished run; empty before."""
    try:
        values: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values


class Probe:
    """Tau through the engine while training goes on, as often as it costs little."""

    def __init__(self, params: TrainParams, folder: Path, trainer: Trainer) -> None:
        self.params, self.folder, self.trainer = params, folder, trainer
        self.spent, self.cost = 0.0, FIRST_PROBE_SECONDS

    def __call__(self) -> dict[str, float]:
        """Figures for the metrics; none when it is too early for another."""
        if self.spent + self.cost > PROBE_SHARE * self.trainer.seconds:
            return {}
        began = time.monotonic()
        scratch = self.folder / "probe"
        export_checkpoint(self.trainer.head, self.trainer.vocabulary, scratch)
        head = scratch / "head.gguf"
        convert_head(scratch, self.params.target, head, "f16", check=False)
        ways = [("f16", shape) for shape in SHAPES]
        prompts = held_out_prompts(self.trainer.corpus, self.trainer.held_out, PROBE_PROMPTS)
        with Examiner(Path(self.params.target), {"f16": head}) as examiner:
            found = examiner.run(prompts, ways, PROBE_TOKENS, UNHURRIED)
        shutil.rmtree(scratch)
        self.cost = time.monotonic() - began
        self.spent += self.cost
        return {f"tau_{shape}": tally.tau for (_, shape), tally in found.items()}


def finish(
    params: TrainParams, folder: Path, trainer: Trainer, clock: Clock, stage: Callable[[str, float, str], None]
) -> Path:
    """Export, measure and describe the head of ``trainer``; gives its Q8_0 file."""
    export_checkpoint(trainer.head, trainer.vocabulary, folder / "head")
    for done, (kind, name) in enumerate(FILES.items(), 1):
        made = convert_head(folder / "head", params.target, folder / name, kind, check=False)
        text = "; ".join([f"{name}, {made.n_bytes / 1e6:.1f} MB", *made.notes])
        stage("export", done / len(FILES), text)
    figures = _measure(params, folder, trainer, clock, stage)
    clock.tick()
    result = {
        "head": str(folder / FILES["q8_0"]),
        "files": {kind: str(folder / name) for kind, name in FILES.items()},
        "answers": len(trainer.corpus),
        "answer_tokens": trainer.corpus.n_answer_tokens(),
        "coverage": round(trainer.vocabulary.coverage, 4),
        "steps": trainer.step,
        "best_step": trainer.best.step,
        "stopped_early": trainer.exhausted,
        "tokens_seen": trainer.tokens,
        "training_seconds": round(trainer.seconds, 1),
        "seconds": round(clock.spent.seconds, 1),
        "figures": figures,
        "params": _as_json(params),
    }
    write_plots(folder, figures)
    write_card(folder, params, trainer, result)
    clock.tick()
    clock.save()
    partial = folder / (RESULT + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, folder / RESULT)
    return folder / FILES["q8_0"]


def _measure(
    params: TrainParams, folder: Path, trainer: Trainer, clock: Clock, stage: Callable[[str, float, str], None]
) -> dict[str, Any]:
    """Acceptance by depth and tau through the engine: all types on held-out prompts, Q8_0 on the questions."""
    wanted = params.evaluation
    parts = 2 if wanted.questions else 1
    teacher = trainer.evaluate()
    figures: dict[str, Any] = {"teacher_forced": {"first": teacher.first, "among": teacher.among}}
    prompts = held_out_prompts(trainer.corpus, trainer.held_out, wanted.n_prompts)
    stage("evaluation", 0.0, f"{len(prompts)} held-out prompts through the engine")
    with Examiner(Path(params.target), {kind: folder / name for kind, name in FILES.items()}) as examiner:
        ways = [("q8_0", "chain"), *((kind, "tree") for kind in FILES)]
        seconds = min(UNHURRIED, clock.left / parts - 2)  # two for plots and card
        held_out = examiner.run(prompts, ways, wanted.max_tokens, seconds)
        figures["held_out"] = {shape: held_out["q8_0", shape].as_dict() for shape in SHAPES}
        figures["types"] = {kind: held_out[kind, "tree"].as_dict() for kind in FILES}
        if wanted.questions:
            stage("evaluation", 0.5, "questions through the engine")
            clock.tick()
            seconds = clock.left - 2 if params.budget_seconds else float("inf")
            asked = examiner.questions("q8_0", wanted, seconds)
            figures["questions"] = {
                name: {shape: tally.as_dict() for shape, tally in tallies.items()} for name, tallies in asked.items()
            }
    stage("evaluation", 1.0, f"tau {figures['held_out']['tree']['tau']} with trees, on held-out prompts")
    return figures


def _as_json(params: TrainParams) -> Any:
    """The settings as they come back from a JSON file, but for the name of the folder."""
    return json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(params, output=""))))
