"""What a head is worth, measured through the engine that will run it: acceptance by depth and tau, chain and tree."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import DraftParams, SamplingParams, TargetParams
from ..engine import Engine
from ..questions import load_questions
from ..stats import Stats
from ..target import Target
from ..template import ChatTemplate
from .params import EvaluationParams
from .shards import Corpus

__all__ = ["SHAPES", "Examiner", "Tally", "held_out_prompts"]

SHAPES = {"tree": DraftParams(total=60, depth=7, top_k=10), "chain": DraftParams.chain(6)}


@dataclass(slots=True)
class Tally:
    """The counts of several generations."""

    prompts: int = 0
    rounds: int = 0
    accepted_n: int = 0
    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, stats: Stats) -> None:
        """Count one generation."""
        self.prompts += 1
        self.rounds += stats.rounds
        self.accepted_n += stats.draft_n_accepted
        for mine, its in ((self.offered, stats.offered), (self.accepted, stats.accepted)):
            mine += [0] * (len(its) - len(mine))
            for depth, n in enumerate(its):
                mine[depth] += n

    @property
    def tau(self) -> float:
        """Tokens per target evaluation."""
        return (self.accepted_n + self.rounds) / max(self.rounds, 1)

    def as_dict(self) -> dict[str, Any]:
        """The figures that are reported."""
        by_depth = [round(a / max(o, 1), 3) for a, o in zip(self.accepted, self.offered, strict=True)]
        return {"prompts": self.prompts, "tau": round(self.tau, 3), "accept_by_depth": by_depth}


class Examiner:
    """Heads on one loaded target.

    Args:
        target: the target's GGUF.
        heads: a GGUF for each name.
        n_ctx: positions for a prompt and its answer.
    """

    def __init__(self, target: Path, heads: Mapping[str, Path], n_ctx: int = 2048) -> None:
        self.target = Target(target, TargetParams(n_ctx=n_ctx))
        self.template = ChatTemplate.of(self.target)
        self.engines = {name: Engine(self.target, head, draft_params=SHAPES["tree"]) for name, head in heads.items()}

    def run(
        self, prompts: Iterable[Sequence[int]], ways: Sequence[tuple[str, str]], max_tokens: int, seconds: float
    ) -> dict[tuple[str, str], Tally]:
        """Continue each prompt greedily in all ``ways``, pairs of a head's name and a shape's.

        It ends after a prompt when ``seconds`` are over, so that every way has seen the same prompts.
        """
        out = {way: Tally() for way in ways}
        end = time.monotonic() + seconds
        for ids in prompts:
            for name, shape in ways:
                engine = self.engines[name]
                engine.reset()
                engine.complete(ids, SamplingParams(max_tokens=max_tokens), SHAPES[shape])
                out[name, shape].add(engine.stats)
            if time.monotonic() > end:
                break
        return out

    def questions(self, head: str, params: EvaluationParams, seconds: float) -> dict[str, dict[str, Tally]]:
        """For each set of questions and each shape the figures of ``head``; question by question through all sets."""
        asked = load_questions(Path(params.questions), params.sets, params.limit or None)
        out: dict[str, dict[str, Tally]] = {}
        end = time.monotonic() + seconds
        for question in sorted(asked, key=lambda question: question.number):
            if out and time.monotonic() > end:
                break
            ids = self.template.encode([{"role": "user", "content": question.text}])
            if len(ids) + params.question_tokens >= self.target.n_ctx:
                continue
            tallies = out.setdefault(question.set, {shape: Tally() for shape in SHAPES})
            for shape in SHAPES:
                engine = self.engines[head]
                engine.reset()
                engine.complete(ids, SamplingParams(max_tokens=params.question_tokens), SHAPES[shape])
                tallies[shape].add(engine.stats)
        return out

    def close(self) -> None:
        """Free everything."""
        for engine in self.engines.values():
            engine.close()
        self.target.close()

    def __enter__(self) -> Examiner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def held_out_prompts(corpus: Corpus, held_out: Sequence[int], n: int) -> list[list[int]]:
    """The prompts, templates and all, of ``n`` of the ``held_out`` passages, evenly spaced."""
    out = []
    for at in range(min(n, len(held_out))):
        passage = corpus[int(held_out[at * len(held_out) // min(n, len(held_out))])]
        n_prompt = int(passage.answer.argmax())
        out.append([int(token) for token in passage.tokens[:n_prompt]])
    return [ids for ids in out if ids]
