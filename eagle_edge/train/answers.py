"""Answers of the target to prompts, with everything a head is trained on, as shards that grow until there is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..target import Target
from .params import DataParams
from .shards import Corpus, Passage, write_shard
from .streams import Job, run_jobs

__all__ = ["finished_shards", "record_answers"]

PASSAGES_PER_SHARD = 128


def finished_shards(folder: Path) -> list[Path]:
    """The whole shards in ``folder``, in the order they were written."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir() and not path.name.endswith(".partial"))


def record_answers(
    target: Target,
    prompts: Iterator[list[int]],
    params: DataParams,
    seed: int,
    folder: Path,
    on_tokens: Callable[[int], None],
) -> int:
    """Answer prompts until the shards in ``folder`` hold ``params.answer_tokens``; gives the tokens they hold.

    Args:
        target: opened for streams, with its taps set.
        prompts: token ids up to where the answer begins; those answered in an earlier run must be left out.
        params: how to answer, and how much.
        seed: of the samples.
        folder: where the shards are; earlier ones are kept and counted.
        on_tokens: called with the tokens held after each answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = finished_shards(folder)
    held = Corpus(shards)
    n_tokens, n_shards = held.n_answer_tokens(), len(shards)
    passages: list[Passage] = []
    if n_tokens >= params.answer_tokens:
        return n_tokens
    for job in run_jobs(target, _answer_jobs(prompts, params, seed, len(held)), params.n_likely):
        passage = job.passage(params.n_likely)
        passages.append(passage)
        n_tokens += int(passage.answer.sum())
        enough = n_tokens >= params.answer_tokens
        if enough or len(passages) == PASSAGES_PER_SHARD:
            write_shard(folder / f"{n_shards:05d}", passages)
            n_shards, passages = n_shards + 1, []
        on_tokens(n_tokens)
        if enough:
            break
    if passages:
        write_shard(folder / f"{n_shards:05d}", passages)
    return n_tokens


def _answer_jobs(prompts: Iterator[list[int]], params: DataParams, seed: int, first: int) -> Iterator[Job]:
    for number, ids in enumerate(prompts, first):
        rng = np.random.default_rng((seed, 2, number))
        greedy = rng.random() < params.greedy_share
        temperature = 0.0 if greedy else float(rng.choice(params.temperatures))
        yield Job(list(ids), len(ids), params.max_answer_tokens, temperature, rng)
