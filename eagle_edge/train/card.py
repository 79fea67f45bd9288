"""The model card: what a head was trained on, how, and what came out."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from ..head_format import HeadConfig
from .loop import Trainer
from .params import LoopParams, TrainParams
from .recipes import RECIPES
from .watching import TREE_WIDTH

__all__ = ["write_card"]


def write_card(folder: Path, params: TrainParams, trainer: Trainer, result: dict[str, Any]) -> Path:
    """Write MODEL_CARD.md into ``folder``; ``result`` is what figures.json holds."""
    path = folder / "MODEL_CARD.md"
    config, vocabulary = trainer.head.config, trainer.vocabulary
    text = f"""# {RECIPES[params.recipe].title} draft head for {Path(params.target).name}

A draft head proposes tokens; the target decides every one of them. It changes how fast text comes, never the text.

## Data
- Everything comes from the target itself: its answers to {_sources(params)}.
- {result["answers"]} answers, {result["answer_tokens"]} answer tokens; {_drawn(params)}.
- Features and labels are read from the quantised target{", again for every batch" if params.online else ""}.

## Head
- {_reads(config)}, one layer, {config.n_embd} wide, {config.n_head}/{config.n_head_kv} heads of \
{config.head_dim}, MLP {config.n_ff}.
- Draft vocabulary {config.n_draft_vocab} of {config.n_vocab} tokens, {vocabulary.coverage:.1%} of what the target says.
- {sum(p.numel() for p in trainer.head.parameters()) / 1e6:.1f} M parameters; the token embedding is the target's.

## Training
{_training(params, trainer)}

## Figures
{_figures(result["figures"], len(trainer.held_out))}

## Licence
The head is derived from its target: the target's licence applies to it.
"""
    path.write_text(text, encoding="utf-8")
    return path


def _sources(params: TrainParams) -> str:
    data = params.data
    if not data.prompt_files:
        return "prompts it wrote itself"
    files = ", ".join(Path(name).name for name in data.prompt_files)
    return f"prompts from {files} ({1 - data.own_share:.0%}) and prompts it wrote itself"


def _drawn(params: TrainParams) -> str:
    if params.data.greedy_share == 1:
        return "all greedy"
    temperatures = ", ".join(f"{temperature:g}" for temperature in sorted(set(params.data.temperatures)))
    return f"{params.data.greedy_share:.0%} greedy, the rest sampled at temperatures {temperatures}"


def _training(params: TrainParams, trainer: Trainer) -> str:
    loop = params.loop
    lines = []
    if params.start_from:
        lines.append(f"Started from {Path(params.start_from).name}, with a fresh optimiser.")
    rest = "what it draws at temperature 1, with noise that the head got too" if loop.same_noise else "its distribution"
    lines.append(
        f"{_unrolled(loop)}; labels are {loop.hard_share:.0%} the target's choice, {1 - loop.hard_share:.0%} {rest}."
    )
    lines.append(
        f"AdamW, learning rate {loop.learning_rate:g} with cosine decay, {loop.n_sequences} answers a batch, "
        f"{trainer.step} steps."
    )
    if trainer.exhausted:
        lines.append(f"Stopped early: {loop.patience} evaluations brought nothing better.")
    if trainer.best.step != trainer.step:
        lines.append(f"The weights are those of step {trainer.best.step}, the best on held-out answers.")
    lines.append(
        f"{trainer.tokens} answer tokens seen in {trainer.seconds / 60:.1f} minutes on {platform.machine()}, "
        f"{trainer.device.type}, torch {torch.__version__}."
    )
    return "\n".join(f"- {line}" for line in lines)


def _reads(config: HeadConfig) -> str:
    return "The state after the final norm" if config.kind == "eagle1" else f"Taps before layers {list(config.taps)}"


def _unrolled(loop: LoopParams) -> str:
    steps = f"Training-time test with {loop.n_steps} steps" if loop.n_steps > 1 else "No training-time test"
    if loop.state_loss == 0:
        return steps
    return f"{steps}; SmoothL1 on states x {loop.state_loss:g} + cross-entropy x {loop.token_loss:g}"


def _figures(figures: dict[str, Any], n_held_out: int) -> str:
    teacher = figures["teacher_forced"]
    held_out, depths = figures["held_out"], range(1, len(teacher["first"]) + 1)
    parts = [
        f"On {n_held_out} held-out answers with teacher-forced tokens, by depth:",
        _table(
            ["depth", *map(str, depths)],
            [
                ["first candidate right", *(f"{rate:.3f}" for rate in teacher["first"])],
                [f"right among {TREE_WIDTH}", *(f"{rate:.3f}" for rate in teacher["among"])],
            ],
        ),
        f"Through the engine, greedily, on {held_out['tree']['prompts']} held-out prompts (Q8_0; tau is tokens per "
        "target evaluation, acceptance the share of offered continuations that were accepted, by depth):",
        _table(["shape", "tau", "acceptance by depth"], [_row(shape, held_out[shape]) for shape in held_out]),
        "The same prompts by type of file, tree 60/7/10:",
        _table(
            ["type", "tau", "acceptance by depth"], [_row(kind.upper(), row) for kind, row in figures["types"].items()]
        ),
    ]
    if questions := figures.get("questions"):
        rows = [
            [name, str(row["tree"]["prompts"]), f"{row['tree']['tau']:.2f}", f"{row['chain']['tau']:.2f}"]
            for name, row in questions.items()
        ]
        parts += ["Questions, greedily:", _table(["set", "questions", "tau, tree 60/7/10", "tau, chain of 6"], rows)]
    return "\n\n".join(parts)


def _row(name: str, tally: dict[str, Any]) -> list[str]:
    return [name, f"{tally['tau']:.2f}", ", ".join(f"{rate:.2f}" for rate in tally["accept_by_depth"])]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
