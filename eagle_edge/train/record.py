"""The stage in which the target answers: is there room for it, how many answers are wanted, and how far it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ..config import TargetParams
from ..errors import EagleEdgeError
from ..target import Target
from ..template import ChatTemplate
from .answers import Recorder, finished_shards, stream_context
from .budget import Clock, Plan, plan
from .params import TrainParams
from .shards import Corpus, bytes_per_token
from .target_weights import TargetWeights

__all__ = ["Goal", "record"]

# The most that the caches of all streams may take; large targets get fewer streams.
STREAM_CACHE_BYTES = 2 << 30
# Prompts are stored too; they are about half as long as the answers.
TOKENS_PER_ANSWER_TOKEN = 1.6


class Goal:
    """How many answer tokens are wanted: a number, or what fits into a budget once speeds are known.

    Args:
        params: of the run.
        clock: of the run.
        measure: gives the training speed, answer tokens a second.
        show: is given the plan whenever there is a new one.
    """

    def __init__(
        self, params: TrainParams, clock: Clock, measure: Callable[[], float], show: Callable[[Plan], None]
    ) -> None:
        self.clock, self.measure, self.show = clock, measure, show
        self.most = params.data.answer_tokens
        self.plan: Plan | None = None

    def __call__(self, n_tokens: int, n_rounds: int) -> int:
        """The answer tokens to stop at, now that ``n_rounds`` rounds gave ``n_tokens``; before any it is a guess."""
        if self.clock.budget == 0 or n_tokens == 0:
            return self.most
        if self.clock.spent.training_speed == 0:
            self.clock.tick(answering=True)
            self.clock.spent.training_speed = self.measure()
            self.clock.tick()
        self.plan = plan(self.clock, n_tokens)
        self.show(self.plan)
        goal = min(self.most, self.plan.answer_tokens)
        # Whole rounds only: another one has to be wanted by at least half.
        return goal if goal - n_tokens > 0.5 * n_tokens / n_rounds else n_tokens

    def share(self, n_tokens: int) -> float:
        """How far ``n_tokens`` are, 0..1; 0 under a budget that has no plan yet."""
        if self.clock.budget > 0 and self.plan is None:
            return 0.0
        goal = self.most if self.plan is None else min(self.most, self.plan.answer_tokens)
        return min(1.0, n_tokens / max(1, goal))


def record(
    params: TrainParams,
    taps: tuple[int, ...],
    weights: TargetWeights,
    folder: Path,
    goal: Goal,
    stage: Callable[[str, float, str], None],
) -> None:
    """Have the target answer until there is enough.

    Raises:
        EagleEdgeError: the disk is too small, or see ``Recorder.run``.
    """
    data = params.data
    shards = finished_shards(folder / "shards")
    have = Corpus(shards).n_answer_tokens()
    if have >= goal(have, len(shards)):
        return

    def wanted(n_tokens: int, n_rounds: int) -> int:
        enough = goal(n_tokens, n_rounds)
        known = goal.plan is not None or (goal.clock.budget == 0 and n_tokens == have)
        if known and enough > n_tokens:
            _check_disk(params, enough - n_tokens, len(taps) * weights.n_embd, folder, stage)
        return enough

    n_streams = min(data.n_streams, max(1, STREAM_CACHE_BYTES // (stream_context(data) * _cache_bytes(weights))))
    settings = TargetParams(n_ctx=stream_context(data), n_batch=512, max_nodes=n_streams, streams=True)
    with Target(params.target, settings) as target:
        stored_taps = () if params.online else taps
        recorder = Recorder(target, ChatTemplate.of(target), stored_taps, data, params.seed, folder)

        def on_tokens(n: int) -> None:
            goal.clock.tick(answering=True)
            stage("answers", goal.share(n), f"{n:,} answer tokens")

        def on_prompts(done: float, n: int) -> None:
            goal.clock.tick(answering=True)  # answers take as long as their prompts do too
            stage("prompts", done, f"{n} prompts")

        goal.clock.tick()
        recorder.run(wanted, on_tokens, on_prompts, insist=goal.clock.budget == 0)
    stage("answers", 1.0, f"{Corpus(finished_shards(folder / 'shards')).n_answer_tokens():,} answer tokens")


def _check_disk(
    params: TrainParams, n_tokens: int, tap_width: int, folder: Path, stage: Callable[[str, float, str], None]
) -> None:
    """Say what will be written, and refuse what does not fit."""
    per_token = bytes_per_token(0 if params.online else tap_width, params.data.n_likely)
    needed, free = int(TOKENS_PER_ANSWER_TOKEN * per_token * n_tokens), shutil.disk_usage(folder).free
    if needed > 0.95 * free:
        less = bytes_per_token(0, params.data.n_likely) / per_token
        way_out = "free some" if params.online else f"--online stores {less:.0%} of that and takes longer"
        raise EagleEdgeError(
            f"{folder}: the features need about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; {way_out}"
        )
    stage("disk", 1.0, f"{needed / 1e9:.2f} GB of features to write, {free / 1e9:.0f} GB free")


def _cache_bytes(weights: TargetWeights) -> int:
    """Bytes of one position in a stream's cache: float16 keys and values of all layers."""
    return weights.n_layer * weights.n_head_kv * weights.head_dim * 2 * 2
