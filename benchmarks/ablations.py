"""What each idea of the EAGLE papers is worth on one target: heads that differ in one thing, trained on the same text.

    python benchmarks/ablations.py --target model.gguf -o runs/ablations --questions QUESTIONS
    python benchmarks/ablations.py --target model.gguf -o runs/ablations --questions QUESTIONS --shards runs/mine/shards

Every head is a run folder of its own. The same command continues after an interruption, and does nothing twice. It ends
with a picture for each comparison and a table, ablations.md. Without ``--shards`` the target first writes the text.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ablation_features import Features
from ablation_report import write_report

from eagle_edge.train.answers import finished_shards
from eagle_edge.train.finish import read_result
from eagle_edge.train.params import DataParams, EvaluationParams, HeadParams, LoopParams, TrainParams
from eagle_edge.train.recipes import RECIPES
from eagle_edge.train.run import train
from eagle_edge.train.shards import Corpus, Passage, write_shard
from eagle_edge.train.watching import Report


@dataclass(frozen=True, slots=True)
class Variant:
    """One head.

    Attributes:
        label: what it is called in pictures and tables.
        recipe: its recipe.
        features: which states it is trained on, see ``Features``.
        eighths: how much of the text.
        steps: of training-time test; None as the recipe says.
        epochs: passes over the text, so chosen that the heads of a comparison take about the same time.
    """

    label: str
    recipe: str = "eagle3"
    features: str = "three"
    eighths: int = 8
    steps: int | None = None
    epochs: int = 2


VARIANTS = {
    "eagle3": Variant("EAGLE-3, 4 steps, all of the text"),
    "one-step": Variant("without training-time test", steps=1, epochs=4),
    "eagle1": Variant("EAGLE-1", recipe="eagle1", features="final"),
    "data-1-8": Variant("1/8 of the text", eighths=1),
    "data-1-4": Variant("1/4 of the text", eighths=2),
    "data-1-2": Variant("1/2 of the text", eighths=4),
    "one-tap": Variant("last of the three taps alone", features="last"),
    "dequantised": Variant("1/4 of the text, dequantised", features="dequantised", eighths=2),
    "eagle3.1": Variant("EAGLE-3.1", recipe="eagle3.1"),
}


def main() -> None:
    """Train and measure what is not there yet, then write pictures and table."""
    options = _options()
    folder: Path = options.output
    passages = _passages(options)
    features = Features(options.target, folder)
    results: dict[str, dict[str, Any]] = {}
    for name in options.only or VARIANTS:
        path = folder / name / "ablation.json"
        if not path.exists():
            result = _make(name, options, passages, features)
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        results[name] = json.loads(path.read_text(encoding="utf-8"))
        write_report(folder, {name: VARIANTS[name] for name in results}, results)
    sys.stdout.write((folder / "ablations.md").read_text(encoding="utf-8"))


def _make(name: str, options: argparse.Namespace, passages: list[Passage], features: Features) -> dict[str, Any]:
    """Train and measure one head, and give its figures."""
    variant, run, progress = VARIANTS[name], options.output / name, _Lines(name)
    progress.say("features")
    n_answers = _write_text(variant, passages, features, run)
    train(_params(variant, options, run, n_answers), progress)
    figures = read_result(run)["figures"]
    taus = {
        f"tau_{shape}": float(np.mean([entry[shape]["tau"] for entry in figures["questions"].values()]))
        for shape in ("chain", "tree")
    }
    minutes = progress.cpu_seconds / 60
    return {"answer_tokens": n_answers, "cpu_minutes": minutes, **figures["teacher_forced"], **taus}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for everything")
    parser.add_argument("--shards", type=Path, help="shards of a training run, whose text is taken")
    parser.add_argument("--questions", type=Path, required=True, help="folder of question sets to measure tau on")
    parser.add_argument("--limit", type=int, default=2, help="questions of each set")
    parser.add_argument("-n", type=int, default=64, help="tokens for each question")
    parser.add_argument("--held-out", type=int, default=32, help="answers to watch by; 8 times as many are trained on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, help="these heads alone")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    return options


def _passages(options: argparse.Namespace) -> list[Passage]:
    """The text: one held-out answer for eight to train on, the held-out ones first."""
    wanted, shards = 9 * options.held_out, options.shards
    if shards is None:
        # The data stages of a run; the small head that it ends with is of no further use.
        data = DataParams(own_share=1.0, answer_tokens=120 * wanted, prompts_per_round=min(512, wanted))
        head, loop = HeadParams(n_draft_vocab=1024), LoopParams(n_steps=1, epochs=1, n_threads=options.threads)
        run = options.output / "text"
        train(TrainParams(str(options.target), str(run), data=data, head=head, loop=loop), _Lines("text"))
        shards = run / "shards"
    corpus = Corpus(finished_shards(shards))
    if len(corpus) < wanted:
        sys.exit(f"{shards}: holds {len(corpus)} answers, {wanted} are needed; give more, or a smaller --held-out")
    order = np.random.default_rng(0).permutation(len(corpus))[:wanted]
    return [corpus[int(index)] for index in order]


def _write_text(variant: Variant, passages: list[Passage], features: Features, run: Path) -> int:
    """Write the shard of a run, its features recorded as the variant asks; gives the answer tokens to train on.

    A trainer holds out every k-th passage. Held-out answers are placed there, so that all heads are judged by the same.
    """
    n_held, every = len(passages) // 9, _every(variant)
    held, rest = passages[:n_held], passages[n_held : n_held * every]
    ordered = [held[i // every] if i % every == 0 else rest[i - i // every - 1] for i in range(n_held * every)]
    shard = run / "shards" / "00000"
    if not shard.exists():
        write_shard(shard, features.of(variant.features, ordered))
    return sum(int(passage.answer.sum()) for passage in rest)


def _every(variant: Variant) -> int:
    return variant.eighths + 1


def _params(variant: Variant, options: argparse.Namespace, run: Path, n_answers: int) -> TrainParams:
    recipe = RECIPES[variant.recipe]
    loop = dataclasses.replace(
        recipe.loop,
        n_steps=variant.steps or recipe.loop.n_steps,
        epochs=variant.epochs,
        held_out=_every(variant),
        n_sequences=2,
        warmup_steps=30,
        evaluate_steps=100,
        patience=0,
        n_threads=options.threads,
    )
    taps = Features.boundaries(variant.features, options.target) if recipe.head.kind == "eagle3" else recipe.head.taps
    head = dataclasses.replace(recipe.head, taps=taps)
    _share_vocabulary(options.output, run, recipe.head.n_draft_vocab > 0)
    asked = EvaluationParams(
        n_prompts=1, max_tokens=8, questions=str(options.questions), limit=options.limit, question_tokens=options.n
    )
    return TrainParams(
        str(options.target),
        str(run),
        recipe=variant.recipe,
        data=DataParams(answer_tokens=n_answers),
        head=head,
        loop=loop,
        evaluation=asked,
    )


def _share_vocabulary(folder: Path, run: Path, reduced: bool) -> None:
    """Give every head the draft vocabulary of the first, so that none is better for its vocabulary."""
    first, path = folder / "eagle3" / "vocabulary.json", run / "vocabulary.json"
    if reduced and first.exists() and not path.exists():
        path.write_bytes(first.read_bytes())


class _Lines:
    """Says how far a run is, a line at most every ten seconds, and what processor time its training takes."""

    def __init__(self, name: str) -> None:
        self.name, self.said = name, 0.0
        self.cpu_seconds, self._before = 0.0, time.process_time()

    def stage(self, name: str, done: float, text: str) -> None:
        self._before = time.process_time()
        self._show(f"{name} {done:.0%}  {text}")

    def report(self, report: Report) -> None:
        now = time.process_time()
        self.cpu_seconds, self._before = self.cpu_seconds + now - self._before, now
        self._show(f"training {report.done:.0%}  loss {report.loss:.3f}")

    def _show(self, text: str) -> None:
        if time.monotonic() - self.said > 10:
            self.said = time.monotonic()
            self.say(text)

    def say(self, text: str) -> None:
        """Write a line now."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {self.name}: {text}\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
