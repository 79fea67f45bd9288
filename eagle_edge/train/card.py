"""The model card: what a head was trained on, how, and what came out."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from ..head_format import HeadConfig
from .loop import TREE_WIDTH, Trainer
from .params import LoopParams, TrainParams
from .recipes import RECIPES
from .shards import Corpus
from .vocabulary import Vocabulary

__all__ = ["write_card"]


def write_card(
    folder: Path, params: TrainParams, config: HeadConfig, vocabulary: Vocabulary, corpus: Corpus, trainer: Trainer
) -> Path:
    """Write MODEL_CARD.md into ``folder``."""
    path = folder / "MODEL_CARD.md"
    data, loop = params.data, params.loop
    acceptance = trainer.evaluate()
    sources = "prompts it wrote itself"
    if data.prompt_files:
        sources += f" and {1 - data.own_share:.0%} from {', '.join(Path(name).name for name in data.prompt_files)}"
    started = f"- Started from {Path(params.start_from).name}, with a fresh optimiser.\n" if params.start_from else ""
    text = f"""# {RECIPES[params.recipe].title} draft head for {Path(params.target).name}

A draft head proposes tokens; the target decides every one of them. It changes how fast text comes, never the text.

## Data
- Everything comes from the target itself: its answers to {sources}.
- {len(corpus)} answers, {corpus.n_answer_tokens()} answer tokens; {data.greedy_share:.0%} greedy, the rest sampled.
- Features and labels are read from the quantised target.

## Head
- {_reads(config)}, one layer, {config.n_embd} wide, {config.n_head}/{config.n_head_kv} heads of \
{config.head_dim}, MLP {config.n_ff}.
- Draft vocabulary {config.n_draft_vocab} of {config.n_vocab} tokens, {vocabulary.coverage:.1%} of what the target says.
- {sum(p.numel() for p in trainer.head.parameters()) / 1e6:.1f} M parameters; the token embedding is the target's.

## Training
{started}- {_unrolled(loop)}; labels are {loop.hard_share:.0%} the target's choice, \
{1 - loop.hard_share:.0%} its distribution.
- AdamW, learning rate {loop.learning_rate:g} with cosine decay, {loop.n_sequences} answers a batch, \
{trainer.step} steps.
- {trainer.tokens} answer tokens seen in {trainer.seconds / 60:.0f} minutes on {platform.machine()}, torch \
{torch.__version__}.

## Figures
On {len(trainer.held_out)} held-out answers with teacher-forced tokens, by depth:

| depth | {" | ".join(str(i + 1) for i in range(len(acceptance.first)))} |
|---|{"---|" * len(acceptance.first)}
| first candidate right | {" | ".join(f"{rate:.3f}" for rate in acceptance.first)} |
| right among {TREE_WIDTH} | {" | ".join(f"{rate:.3f}" for rate in acceptance.among)} |

## Licence
The head is derived from its target: the target's licence applies to it.
"""
    path.write_text(text, encoding="utf-8")
    return path


def _reads(config: HeadConfig) -> str:
    return "The state after the final norm" if config.kind == "eagle1" else f"Taps before layers {list(config.taps)}"


def _unrolled(loop: LoopParams) -> str:
    steps = f"Training-time test with {loop.n_steps} steps" if loop.n_steps > 1 else "No training-time test"
    if loop.state_loss == 0:
        return steps
    return f"{steps}; SmoothL1 on states x {loop.state_loss:g} + cross-entropy x {loop.token_loss:g}"
