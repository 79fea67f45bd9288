"""Tokens per target evaluation (tau) of a head over whole question sets, in minutes: only the drafting is repeated.

    python benchmarks/tau.py QUESTIONS [--tree 60/7/10] [--temperature 1] [--limit 4] [--json]

The target answers many questions at once. Its text does not depend on drafts, so what it would accept of a tree is
known beforehand: the head drafts, in its own runtime and from the target's own taps, the tree that every round would
verify, and the text says how far it agrees. At temperature 0 that is ``eagle-edge bench --tree`` without the 60 rows a
round. At others the head guesses without the target's noise here, so the engine's tau is higher.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eagle_edge.config import DraftParams, TargetParams
from eagle_edge.draft import Draft
from eagle_edge.errors import EagleEdgeError
from eagle_edge.models import default_head, default_target
from eagle_edge.questions import Question, load_questions
from eagle_edge.target import Target
from eagle_edge.template import ChatTemplate
from eagle_edge.threads import physical_cores
from eagle_edge.train.streams import Job, run_jobs

N_STREAMS = 48


def main() -> None:
    """Parse, let the target answer, let the head draft, print a line for every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, help="a folder of question sets")
    parser.add_argument("--target", type=Path, default=default_target())
    parser.add_argument("--head", type=Path, default=default_head())
    parser.add_argument("--tree", type=tree_sizes, default="60/7/10", metavar="TOTAL/DEPTH/TOPK")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--limit", type=int, help="questions of each set")
    parser.add_argument("--sets", default="", help="names, with commas")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="write one JSON value to stdout")
    args = parser.parse_args()
    params, console = args.tree, Console(stderr=True)
    questions = load_questions(args.questions, [name for name in args.sets.split(",") if name], args.limit)
    prompts = _prompts(args.target, questions)
    n_ctx = max(map(len, prompts)) + args.max_tokens
    answers = _answers(args.target, prompts, n_ctx, args.max_tokens, args.temperature, console)
    walks: dict[str, list[tuple[int, int]]] = {}
    with (
        Target(args.target, TargetParams(n_ctx=n_ctx)) as target,
        Draft(args.head, args.target, n_ctx=n_ctx, n_threads=physical_cores(), params=params) as draft,
    ):
        target.set_taps(draft.config.taps)
        for at in track(range(len(questions)), "drafting", console=console):
            if answers[at]:
                walk = _walk(target, draft, params, prompts[at], answers[at])
                walks.setdefault(questions[at].set, []).append(walk)
    _report(walks, args.json)


def tree_sizes(text: str) -> DraftParams:
    """TOTAL/DEPTH/TOPK; anything else is a ValueError."""
    total, depth, top_k = map(int, text.split("/"))
    return DraftParams(total, depth, top_k)


def _prompts(path: Path, questions: list[Question]) -> list[list[int]]:
    with Target(path, TargetParams(n_ctx=64)) as target:
        template = ChatTemplate.of(target)
        return [template.encode([{"role": "user", "content": question.text}]) for question in questions]


def _answers(
    path: Path, prompts: list[list[int]], n_ctx: int, max_tokens: int, temperature: float, console: Console
) -> list[list[int]]:
    """What the target says to each prompt, the token that ends it included."""

    def jobs() -> Iterator[Job]:
        for number, ids in enumerate(prompts):
            yield Job(number, list(ids), len(ids), max_tokens, temperature, np.random.default_rng((0, number)))

    answers: list[list[int]] = [[] for _ in prompts]
    with Target(path, TargetParams(n_ctx=n_ctx, n_batch=512, max_nodes=N_STREAMS, streams=True)) as target:
        for job in track(run_jobs(target, jobs()), "answers", total=len(prompts), console=console):
            answers[job.number] = job.ids[job.n_prompt :]
    return answers


def _walk(target: Target, draft: Draft, params: DraftParams, prompt: list[int], answer: list[int]) -> tuple[int, int]:
    """Tokens and rounds of an answer."""
    ids = [*prompt, *answer]
    target.rewind(0)
    draft.rewind(0)
    taps = []
    for start in range(0, len(ids) - 1, target.n_prefill):
        part = ids[start : min(start + target.n_prefill, len(ids) - 1)]
        taps.append(target.prefill(part).taps(range(len(part))))
    features = np.concatenate(taps)  # [positions, K*E]
    end, n_rounds, n_tokens = len(prompt), 0, 0  # the text so far is ids[:end]; its last token is the root
    while end < len(ids):
        draft.extend(ids[draft.n_pairs + 1 : end], features[draft.n_pairs : end - 1])
        tree = draft.propose(ids[end - 1], params, len(ids) - end)
        node: int | None = 0
        n_new = 0
        while node is not None and end + n_new < len(ids):
            n_new += 1
            node = tree.child(node, ids[end + n_new - 1])
        end, n_rounds, n_tokens = end + n_new, n_rounds + 1, n_tokens + n_new
    return n_tokens, n_rounds


def _report(walks: dict[str, list[tuple[int, int]]], as_json: bool) -> None:
    """Tau of each set, all its questions together, and the mean over the sets."""
    means = {name: sum(n for n, _ in each) / sum(n for _, n in each) for name, each in walks.items()}
    means["mean"] = statistics.fmean(means.values())
    if as_json:
        sys.stdout.write(json.dumps({name: round(tau, 3) for name, tau in means.items()}) + "\n")
        return
    table = Table("set", "questions", "tau")
    for name, tau in means.items():
        table.add_row(name, str(len(walks[name]) if name in walks else sum(map(len, walks.values()))), f"{tau:.2f}")
    Console().print(table)


if __name__ == "__main__":
    try:
        main()
    except EagleEdgeError as error:
        sys.exit(f"tau.py: {error}")
