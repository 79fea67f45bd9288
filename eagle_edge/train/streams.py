"""Many sequences generated at once by one target: a new one starts wherever another ends.

Every evaluation appends one token to each running sequence, so the weights are read once for all of them. What the
target saw on the way (taps, likely next tokens) is kept when asked for: it costs no second evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..target import Evaluation, Target
from .likeliest import Likeliest
from .shards import Passage, to_bf16

__all__ = ["Job", "run_jobs"]

Array = npt.NDArray[Any]

# Sampling draws among this many of the likeliest tokens.
N_CANDIDATES = 64


@dataclass(slots=True)
class Job:
    """A sequence to continue.

    Attributes:
        number: which one it is, for the caller.
        ids: the tokens it starts with; generated tokens are appended.
        n_prompt: how many of ``ids`` are given.
        max_tokens: end after this many generated tokens.
        temperature: 0 takes the likeliest token.
        rng: draws the samples of this job alone, so that a text does not depend on its neighbours.
        ended: the last token ends generation (set by ``run_jobs``).
    """

    number: int
    ids: list[int]
    n_prompt: int
    max_tokens: int
    temperature: float
    rng: np.random.Generator
    ended: bool = False
    taps: list[Array] = field(default_factory=list)
    likely_ids: list[Array] = field(default_factory=list)
    likely_logprobs: list[Array] = field(default_factory=list)

    def passage(self, n_likely: int) -> Passage:
        """What was evaluated of this job: all tokens but the last, whose taps nobody computed."""
        n = len(self.ids) - 1
        likely_ids = np.zeros((n, n_likely), np.int32)
        likely_logprobs = np.zeros((n, n_likely), np.float16)
        rows = slice(self.n_prompt - 1, n)
        likely_ids[rows], likely_logprobs[rows] = np.stack(self.likely_ids), np.stack(self.likely_logprobs)
        return Passage(
            np.array(self.ids[:n], np.int32),
            np.arange(n) >= self.n_prompt,
            np.concatenate(self.taps),
            likely_ids,
            likely_logprobs,
        )


def run_jobs(target: Target, jobs: Iterator[Job], n_likely: int = 0) -> Iterator[Job]:
    """Yield each job when it is finished, in the order in which they finish.

    Args:
        target: opened with ``stream_ctx``; its taps are recorded when ``n_likely`` is not 0.
        jobs: taken one by one whenever a stream is free.
        n_likely: C, the next tokens to keep of every distribution.
    """
    target.clear_stream()
    likeliest = Likeliest(target.params.max_nodes, target.n_vocab)
    running: dict[int, Job] = {}
    free = list(range(target.params.max_nodes))[::-1]
    try:
        while True:
            while free and (job := next(jobs, None)) is not None:
                stream = free.pop()
                if _start(target, likeliest, stream, job, n_likely):
                    running[stream] = job
                else:
                    free.append(stream)
                    yield job
            if not running:
                return
            _close_gaps(target, running, free)
            finished = _advance(target, likeliest, running, n_likely)
            done = [running.pop(stream) for stream in finished]
            free = sorted([*free, *finished], reverse=True)
            yield from done
    finally:
        target.clear_stream()


def _close_gaps(target: Target, running: dict[int, Job], free: list[int]) -> None:
    """Move sequences down until the running streams are 0, 1, 2, ...; ``free`` is descending and stays so."""
    while free and running and (last := max(running)) > free[-1]:
        lowest = free.pop()
        target.move_stream(last, lowest)
        running[lowest] = running.pop(last)
        free.append(last)
        free.sort(reverse=True)


def _start(target: Target, likeliest: Likeliest, stream: int, job: Job, n_likely: int) -> bool:
    """Read the prompt of a job into an empty stream; False when it ends at once."""
    target.clear_stream(stream)
    n_batch = target.n_prefill
    for start in range(0, len(job.ids), n_batch):
        part = job.ids[start : start + n_batch]
        last = start + len(part) == len(job.ids)
        wanted = [last and i == len(part) - 1 for i in range(len(part))]
        evaluation = target.eval_streams(part, [stream] * len(part), wanted)
        if n_likely:
            job.taps.append(to_bf16(evaluation.taps(range(len(part)))))
    _choose(target, likeliest, evaluation, [len(part) - 1], [job], n_likely)
    return not _finished(target, job)


def _advance(target: Target, likeliest: Likeliest, running: dict[int, Job], n_likely: int) -> list[int]:
    """One token for every running job; the streams of those that are finished."""
    streams = sorted(running)
    jobs = [running[stream] for stream in streams]
    evaluation = target.eval_streams([job.ids[-1] for job in jobs], streams, [True] * len(jobs))
    if n_likely:
        for job, row in zip(jobs, to_bf16(evaluation.taps(range(len(jobs)))), strict=True):
            job.taps.append(row[None])
    _choose(target, likeliest, evaluation, range(len(jobs)), jobs, n_likely)
    return [stream for stream, job in zip(streams, jobs, strict=True) if _finished(target, job)]


def _choose(
    target: Target, likeliest: Likeliest, evaluation: Evaluation, rows: Sequence[int], jobs: list[Job], n_likely: int
) -> None:
    """Append the next token to each job, and keep what else was likely."""
    candidates, logprobs = likeliest.find(evaluation, rows, min(max(N_CANDIDATES, n_likely), target.n_vocab))
    for job, logprob, candidate in zip(jobs, logprobs, candidates, strict=True):
        if n_likely:
            job.likely_ids.append(candidate[:n_likely].copy())
            job.likely_logprobs.append(logprob[:n_likely].astype(np.float16))
        job.ids.append(int(candidate[_pick(logprob, job)]))


def _pick(logprob: Array, job: Job) -> int:
    if job.temperature == 0:
        return 0
    noise = job.rng.gumbel(size=len(logprob))
    return int(np.argmax(logprob / job.temperature + noise))


def _finished(target: Target, job: Job) -> bool:
    job.ended = target.is_end(job.ids[-1])
    return job.ended or len(job.ids) - job.n_prompt >= job.max_tokens
