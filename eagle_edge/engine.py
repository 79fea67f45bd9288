"""The loop: propose a tree, evaluate it, verify it, commit what the target agrees with.

Plain decoding, chains and trees are the same loop; they differ in the tree that is proposed.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import DraftParams, SamplingParams, TargetParams
from .draft import Draft
from .drafter import Drafter
from .errors import ContextFullError, PairError
from .exactness import Exactness, Mode, open_exact
from .gguf_header import GgufHeader, read_header
from .grammar import compile_constraint
from .learnt import Learnt
from .models import default_head, default_target
from .pair import check_pair
from .sampling import Sampler, TokenLogprob
from .stats import Stats
from .target import Evaluation, Target
from .text import TextStream
from .tree import Tree
from .verify import Verified, verify

__all__ = ["Completion", "Engine", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one round added to the text.

    Attributes:
        text: complete characters that can be shown now; may be empty.
        token_ids: the tokens of this round, 1 to tree depth + 1. A stop string may take back the last tokens of the
            generation, also of earlier steps: ``Stats.generated_n`` of all are kept.
        logprobs: one entry a token when asked for.
        finish_reason: None while it goes on, then "stop" or "length".
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole generation."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...]
    stats: Stats


class Engine:
    """A target, and a head that drafts for it; the text is the target's alone.

    Args:
        target: a GGUF file or an open ``Target``.
        head: a head's GGUF file, or None to draft from the text's own repetitions alone.
        target_params: how to load the target from a file.
        exact: "auto" takes kernels whose rows do not depend on the tree where they cost little, "strict" insists; an
            open ``Target`` is taken as it is.
        draft_params: the tree that ``generate`` drafts when it is given none, and the largest it can be given; by
            default what pays best in every round. ``DraftParams(total=1)`` without a head only decodes plainly.

    Attributes:
        exactness: what was found about that when a file was opened to draft for; None otherwise.
        drafter: who proposes trees.
        stats: counts and times of the latest generation.

    Raises:
        FileFormatError, PairError, NativeError: as ``Target`` and ``Draft`` do.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Target,
        head: str | os.PathLike[str] | None = None,
        target_params: TargetParams | None = None,
        exact: Mode = "auto",
        draft_params: DraftParams | None = None,
    ) -> None:
        self.exactness: Exactness | None = None
        path = target.path if isinstance(target, Target) else os.fspath(target)
        pair = None if head is None else (read_header(os.fspath(head)), read_header(path))
        if pair is not None:
            check_pair(*pair)  # before a large target is loaded
        if isinstance(target, Target):
            self.target = target
        elif head is None and draft_params is not None and draft_params.total == 1:
            self.target = Target(target, target_params)
        else:
            self.target, self.exactness = open_exact(target, target_params, exact)
        self.draft_params = draft_params or DraftParams.auto(min(64, self.target.params.max_nodes))
        self.drafter = Drafter(None if pair is None else self._load_head(*pair), self.draft_params)
        self.stats = Stats()
        self._ids: list[int] = []  # the text in the cache and its last token, which is not evaluated yet
        self._learnt = Learnt(self.drafter, self.target, head) if self.draft_params.automatic else None

    def generate(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, draft: DraftParams | None = None
    ) -> Generator[Step, None, None]:
        """Yield steps until a stop; closing the iterator early leaves the engine ready for the next prompt.

        Args:
            prompt: text (control tokens in it are read as such) or token ids.
            params: how tokens are chosen and when to stop.
            draft: the tree to draft, the engine's own by default; ``DraftParams(total=1)`` decodes plainly.

        Raises:
            ValueError: the prompt is empty or holds ids outside the vocabulary.
            ContextFullError: the prompt leaves no room for a token.
            GrammarError, NoTokenLeftError: the grammar is broken, or nothing may follow.
        """
        params, draft = params or SamplingParams(), draft or self.draft_params
        ids = self._checked(prompt)
        if self._learnt is not None and draft.automatic:
            self._learnt.refresh()
        self.drafter.begin(draft if self.target.can_branch else DraftParams(total=1))
        stats = self.stats = Stats(prompt_n=len(ids))
        sampler = self._sampler(params, ids)
        stream = TextStream(self.target.piece, params.stop)
        try:
            self._prefill(ids)
            while True:
                start = time.perf_counter()
                limit = self._room(params)
                with stats.timed("draft"):
                    tree, proposals = self.drafter.propose(self._ids, sampler, limit, self.target.n_threads)
                with stats.timed("verify"):
                    evaluation = self.target.eval_tree(tree)
                verified = verify(tree, evaluation, sampler, len(self._ids), limit, proposals)
                step = self._step(verified, stream, limit)
                self._commit(evaluation, verified, step.token_ids)
                self._count(tree, verified, stream, step, time.perf_counter() - start)
                yield step
                if step.finish_reason is not None:
                    return
        finally:
            self._settle()

    @property
    def draft(self) -> Draft | None:
        """The head."""
        return self.drafter.draft

    @property
    def learnt_file(self) -> Path | None:
        """Where costs and chances are kept between runs; None with fixed trees, which need neither."""
        return None if self._learnt is None else self._learnt.path

    def complete(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, draft: DraftParams | None = None
    ) -> Completion:
        """The whole generation at once; arguments and errors as ``generate``."""
        steps = list(self.generate(prompt, params, draft))
        n_kept = self.stats.generated_n
        return Completion(
            "".join(step.text for step in steps),
            tuple(token for step in steps for token in step.token_ids)[:n_kept],
            steps[-1].finish_reason or "stop",
            tuple(entry for step in steps for entry in step.logprobs)[:n_kept],
            self.stats,
        )

    def _load_head(self, head: GgufHeader, target: GgufHeader) -> Draft:
        if not self.target.can_branch:
            raise PairError(
                f"{self.target.path}: a recurrent target cannot drop a rejected branch; run it without a head"
            )
        params = self.target.params
        draft = Draft(
            head,
            target,
            n_ctx=self.target.n_ctx,
            n_threads=params.n_threads,
            params=self.draft_params,
            n_gpu_layers=params.n_gpu_layers,
        )
        self.target.set_taps(draft.config.taps)
        return draft

    # -- the verbs of the loop -----------------------------------------------------------------------------------------

    def _prefill(self, ids: list[int]) -> None:
        """Bring the caches to ``ids`` without its last token, reusing what they share with the text before."""
        with self.stats.timed("prefill"):
            keep = self._reusable(ids)
            self.target.rewind(keep)
            self.drafter.rewind(keep)
            self._ids = ids[: keep + 1]
            self.stats.reused_n = keep
            for start in range(keep, len(ids) - 1, self.target.n_prefill):
                end = min(start + self.target.n_prefill, len(ids) - 1)
                evaluation = self.target.prefill(ids[start:end])
                self._ids = ids[: end + 1]
                if self.drafter.reads:
                    self.drafter.read(start, ids[start + 1 : end + 1], evaluation.taps(range(end - start)), now=True)

    def _reusable(self, ids: list[int]) -> int:
        """Committed tokens that ``ids`` starts with, less one: a head's cache at t depends on token t + 1.

        At least one pair is left to extend, because its output is what the first round drafts from.
        """
        shared = 0
        for old, new in zip(self._ids, ids, strict=False):
            if old != new:
                break
            shared += 1
        keep = max(0, min(shared - 1, len(ids) - 2))
        if self.drafter.reads:
            keep = min(keep, self.drafter.n_pairs)
        return keep if self.target.can_branch or keep == self.target.n_past else 0

    def _commit(self, evaluation: Evaluation, verified: Verified, tokens: tuple[int, ...]) -> None:
        """Keep the root and the accepted nodes before the last of ``tokens``, in both caches."""
        path, position = [0, *verified.path][: len(tokens)], len(self._ids) - 1
        with self.stats.timed("verify"):
            self.target.commit(path)
            self._ids += tokens
        with self.stats.timed("draft"):
            if self.drafter.reads:
                self.drafter.read(position, tokens, evaluation.taps(path))
            self.drafter.observe(verified.tokens, evaluation.n_nodes, evaluation.ms)

    def _step(self, verified: Verified, stream: TextStream, limit: int) -> Step:
        """The text of the verified tokens, cut at the first stop."""
        text, n_tokens, reason = "", 0, None
        for token in verified.tokens:
            n_tokens += 1
            if verified.ended and n_tokens == len(verified.tokens):
                break  # a token that ends the text is no part of it
            text += stream.push(token)
            if stream.stopped is not None:
                break
        if verified.ended or stream.stopped is not None:
            reason = "stop"
        elif n_tokens == limit:
            reason = "length"
        if reason is not None:
            text += stream.flush()
        if stream.stopped is not None:
            reason = "stop"
        return Step(text, verified.tokens[:n_tokens], verified.logprobs[:n_tokens], reason)

    def _count(self, tree: Tree, verified: Verified, stream: TextStream, step: Step, seconds: float) -> None:
        """Note the round in the statistics; a stop string takes back the tokens it does not need."""
        stats, n_prompt = self.stats, self.stats.prompt_n
        if stream.stopped is not None:
            del self._ids[n_prompt + stream.n_kept :]
        stats.count_round(tree, verified.path, seconds)
        stats.head_error = self.drafter.error
        stats.generated_n = len(self._ids) - n_prompt

    def _settle(self) -> None:
        """Make caches and text agree again, wherever the generation was left."""
        n_past = min(self.target.n_past, max(0, len(self._ids) - 1))
        if n_past < self.target.n_past:
            self.target.rewind(n_past)
        self.drafter.rewind(n_past)

    # -- details -------------------------------------------------------------------------------------------------------

    def _checked(self, prompt: str | Sequence[int]) -> list[int]:
        ids = self.target.tokenize(prompt, parse_special=True) if isinstance(prompt, str) else [int(i) for i in prompt]
        if not ids:
            raise ValueError("the prompt is empty; give at least one token")
        if min(ids) < 0 or max(ids) >= self.target.n_vocab:
            raise ValueError(f"the prompt holds ids outside the vocabulary of {self.target.n_vocab}")
        if len(ids) >= self.target.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(ids)} tokens and the context {self.target.n_ctx}: shorten it or raise --n-ctx"
            )
        return ids

    def _sampler(self, params: SamplingParams, ids: list[int]) -> Sampler:
        constraint = compile_constraint(params, self.target)
        return Sampler(params, self.target.n_vocab, ids, self._end_ids, constraint)

    @functools.cached_property
    def _end_ids(self) -> tuple[int, ...]:
        return tuple(token for token in range(self.target.n_vocab) if self.target.is_end(token))

    def _room(self, params: SamplingParams) -> int:
        """The most tokens this round may add: what max_tokens and the context leave."""
        left = self.target.n_ctx - len(self._ids)
        return left if params.max_tokens is None else min(left, params.max_tokens - self.stats.generated_n)

    def reset(self) -> None:
        """Empty the caches, as if nothing had been generated."""
        self._ids = []
        self.target.rewind(0)
        self.drafter.rewind(0)

    @classmethod
    def packaged(cls, target_params: TargetParams | None = None) -> Engine:
        """The default model with the head trained for it."""
        return cls(default_target(), default_head(), target_params)

    def close(self) -> None:
        """Free head and target; closing again does nothing."""
        if self._learnt is not None:
            self._learnt.save()
        self.drafter.close()
        self.target.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
