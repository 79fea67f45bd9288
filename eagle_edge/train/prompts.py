"""Prompts: from files, written by the target itself after its template's user header, or about what it said earlier."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileFormatError, PairError
from ..target import Target
from .shards import Corpus
from .streams import Job, run_jobs

__all__ = ["OPENERS", "own_prompts", "passage_prompts", "prompt_key", "read_prompts", "user_header"]

# How requests begin. Sampling after one of these spreads what a small model writes over more kinds of requests.
_OPENERS = """
Write a|Write a short|Write a story about|Write a poem about|Write an email|Write a letter to|Write a function that
Write a Python function|Create a|Create a list of|Design a|Develop a|Describe|Describe the|Explain|Explain how
Explain why|Explain the difference between|What is|What are|What are the|What does|What would|What if|How|How do I
How can|How does|How many|Why|Why is|When did|Where|Who was|Which|Can you|Can you help me|Could you|Please|I need
I want to|I am|I have a|My|Give me|Give an example of|Generate|List|Name|Tell me|Compare|Analyze|Discuss|Identify
Classify the following|Rewrite the following sentence|Edit the following|Correct the grammar|Convert|Translate
Summarize the following|Summarize the following article:|Read the following passage and answer the question.
Given the following|Given a|Imagine|Imagine you are|Suppose|Act as|You are|If|In|Is|Are there|Do|Should|Find the
Calculate|Solve|Evaluate|Determine|Prove that|A|A train|The|The following|There are|Consider|Complete the following
Implement|def |Here is a Python function:|Fix the bug in|Answer the following question:|Extract|Provide|Suggest
Recommend|Brainstorm|Outline|Plan|Compose|Hi|Hello|Help me|Make|Take|Sort|Use|To|For|After|While|One|Two|On|At
Have you|Tom|Maria|John has|Sarah|Every|Most|Many|Recently
import |from typing import List|class |```python|#include |function |SELECT |Complete this code:|Write a class
Write a test for|Refactor
"""
OPENERS = _OPENERS.strip().replace("\n", "|").split("|")

# What to do with a passage that follows.
_TASKS = """
Summarize: |Summarize the following text in a few sentences. |What are the main points of this text?
TL;DR: |Rewrite this in simpler words: |Correct any mistakes in the following: |Continue this text:
Answer with one paragraph: what is this about? |Turn this into a list of key facts:
"""
TASKS = [task.strip() for task in _TASKS.strip().replace("\n", "|").split("|")]

MIN_OWN_TOKENS = 4


def read_prompts(path: Path) -> list[str]:
    """The prompts in a file: .txt is one a line; .jsonl holds ``prompt``, ``messages`` or ``conversations`` a line.

    Of a conversation the first user turn is taken.

    Raises:
        FileFormatError: no such file, a line that is not understood, or no prompt at all.
    """
    try:
        # Not splitlines(): JSON strings may hold U+2028 and other characters it takes for the end of a line.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: cannot be read: {error}") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = line.strip() if path.suffix == ".txt" else _prompt_of(line)
        if prompt is None:
            raise FileFormatError(
                f"{path}, line {number}: not JSON with prompt, messages or conversations; fix or remove it"
            )
        if prompt:
            prompts.append(prompt)
    if not prompts:
        raise FileFormatError(f"{path}: holds no prompts")
    return prompts


def _prompt_of(line: str) -> str | None:
    """The first user turn of a JSON line, or None where there is none."""
    try:
        value: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("prompt"), str):
        return str(value["prompt"]).strip()
    turns = value.get("messages", value.get("conversations"))
    if not isinstance(turns, list):
        return None
    for turn in turns:
        if isinstance(turn, dict) and turn.get("role", turn.get("from")) in ("user", "human"):
            content = turn.get("content", turn.get("value"))
            return content.strip() if isinstance(content, str) else None
    return None


def user_header(render: Any) -> str:
    """What a chat template writes before the user's first word.

    Args:
        render: turns a user message into the template's text, generation prompt included.

    Raises:
        PairError: the template does not show the message.
    """
    mark = "\u241f\u241f"
    text = str(render(mark))
    if mark not in text:
        raise PairError(
            "the target's chat template does not show the user's message, so it cannot write prompts itself"
        )
    return text.split(mark)[0]


def own_prompts(
    target: Target,
    header: str,
    wanted: int,
    seed: tuple[int, ...],
    max_tokens: int,
    openers: bool,
    seen: set[str],
    on_written: Callable[[float], None] = lambda share: None,
) -> list[str]:
    """``wanted`` different prompts that the target writes after ``header``; the seed alone decides which.

    Args:
        target: opened for streams.
        header: see ``user_header``.
        wanted: how many.
        seed: of the samples.
        max_tokens: longer ones are thrown away.
        openers: begin three of four with one of ``OPENERS``.
        seen: what is already there, as ``prompt_key`` says it; extended.
        on_written: called with the share that is written, 0..1.

    Raises:
        PairError: the target writes hardly anything that can be used.
    """
    start = target.tokenize(header, parse_special=True)
    out: list[str] = []
    number = 0
    while len(out) < wanted:
        if number > 20 * wanted + 1000:
            raise PairError(
                f"{target.path}: of {number} prompts it wrote, {len(out)} can be used; give a file of prompts"
            )
        n_jobs = max(8, math.ceil(1.25 * (wanted - len(out))))
        jobs = (_own_job(target, start, (*seed, i), max_tokens, openers) for i in range(number, number + n_jobs))
        number += n_jobs
        written = []
        for job in run_jobs(target, jobs):
            written.append(job)
            on_written(min(1.0, (len(out) + len(written)) / (1.25 * wanted)))
        for job in sorted(written, key=lambda job: job.number):
            prompt = _own_prompt(target, job, len(start))
            if prompt and prompt_key(prompt) not in seen and len(out) < wanted:
                seen.add(prompt_key(prompt))
                out.append(prompt)
    return out


def _own_job(target: Target, start: list[int], seed: tuple[int, ...], max_tokens: int, openers: bool) -> Job:
    rng = np.random.default_rng(seed)
    opener = OPENERS[rng.integers(len(OPENERS))] if openers and rng.random() < 0.75 else ""
    ids = start + (target.tokenize(opener, add_special=False) if opener else [])
    return Job(seed[-1], ids, len(ids), max_tokens, 1.0, rng)


def _own_prompt(target: Target, job: Job, n_header: int) -> str:
    """The prompt a job wrote; empty when it was cut off, or says nothing."""
    ids = job.ids[n_header:-1]
    if not job.ended or len(ids) < MIN_OWN_TOKENS:
        return ""
    prompt = b"".join(target.piece(token) for token in ids).decode("utf-8", "replace").strip()
    return "" if "\ufffd" in prompt else prompt


def passage_prompts(
    target: Target, corpus: Corpus, wanted: int, seed: tuple[int, ...], max_tokens: int, seen: set[str]
) -> list[str]:
    """``wanted`` prompts, or as many as there is text for, to summarise or rewrite what the target said earlier.

    Args:
        target: turns tokens into text.
        corpus: earlier answers; each is used at most once.
        wanted: how many.
        seed: decides which answers are joined under which task.
        max_tokens: of a prompt's passage; lengths are spread evenly up to it.
        seen: what is already there, as ``prompt_key`` says it; extended.
    """
    rng = np.random.default_rng(seed)
    order = list(rng.permutation(len(corpus)))
    out: list[str] = []
    while order and len(out) < wanted:
        size, tokens = int(rng.integers(max_tokens // 6, max_tokens + 1)), list[int]()
        while order and len(tokens) < size:
            passage = corpus[int(order.pop())]
            tokens += passage.tokens[passage.answer].tolist()
        text = b"".join(target.piece(token) for token in tokens[:size]).decode("utf-8", "ignore").strip()
        prompt = f"{TASKS[rng.integers(len(TASKS))]} {text}"
        if text and prompt_key(prompt) not in seen:
            seen.add(prompt_key(prompt))
            out.append(prompt)
    return out


def prompt_key(prompt: str) -> str:
    """What makes two prompts the same: their words, whatever the case and spacing."""
    return " ".join(prompt.lower().split())
