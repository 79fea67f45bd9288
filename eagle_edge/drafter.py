"""Everything that drafts for an engine: the head, what it has not read yet, and the policy that decides how much.

It knows nothing of the target's cache, of verification or of text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .asking import Listener
from .backlog import Backlog
from .config import DraftParams
from .draft import Draft
from .errors import NativeError
from .filters import Candidates
from .policy import Policy
from .same_noise import NO_NOISE, Noise
from .sampled import sample_chain
from .sampling import Sampler
from .tree import Tree, lone

__all__ = ["Drafter"]

Float32 = npt.NDArray[np.float32]

_SLACK = 1.0  # logits over the temperature; what the head thinks too unlikely may be what the target's min-p leaves


class Drafter:
    """Drafts one text at a time.

    Args:
        draft: the head, or None to draft from the text's own repetitions alone.
        bounds: the largest trees that ``draft`` was opened for.

    Attributes:
        draft: the head.
        policy: chooses trees where the settings are automatic.
        error: why the head was given up in this text; None while it works.
    """

    def __init__(self, draft: Draft | None, bounds: DraftParams) -> None:
        self.draft = draft
        self.policy = Policy(bounds)
        self.error: str | None = None
        self._backlog = None if draft is None else Backlog(draft)
        self._params = DraftParams(total=1)
        self._active = False  # whether the head drafts in this text
        self._given_up_on_failure = _GivenUpOnFailure(self)

    def give_up(self, error: NativeError) -> None:
        """Draft without the head until the next text."""
        self._active = False
        self.error = str(error)

    def begin(self, params: DraftParams) -> None:
        """Start another text, drafted as ``params`` say."""
        self._params = params
        self._active = self.draft is not None and params.total > 1
        self.error = None
        self.policy.start(repetitions=params.repetitions)

    @property
    def reads(self) -> bool:
        """Whether it wants the taps of what is committed."""
        return self._active

    @property
    def n_pairs(self) -> int:
        """Pairs of taps and next tokens that it holds, from the start of the text on."""
        return 0 if self._backlog is None else self._backlog.n_pairs

    def read(self, position: int, next_tokens: Sequence[int], taps: Float32, *, now: bool = False) -> None:
        """Take the pairs from ``position`` on; ``now`` reads all but the last at once, not when a draft is wanted."""
        if self._active and self._backlog is not None:
            with self._given_up_on_failure:
                self._backlog.add(position, next_tokens, taps)
                if now:
                    self._backlog.read(last=False)

    def rewind(self, n_pairs: int) -> None:
        """Forget pairs from position ``n_pairs`` on."""
        if self.draft is not None and self._backlog is not None:
            self._backlog.rewind(n_pairs)
            if self.draft.n_pairs > n_pairs:
                self.draft.rewind(n_pairs)

    def propose(
        self, ids: Sequence[int], sampler: Sampler, limit: int, n_threads: int
    ) -> tuple[Tree, Mapping[int, Candidates] | None]:
        """The tree to verify under the last of ``ids``, its root alone when nothing is drafted, and how it was sampled.

        Args:
            ids: the text.
            sampler: decides what the draft should guess.
            limit: the most tokens that this round may add.
            n_threads: of the evaluations of this round.
        """
        if not self._active and not self._params.automatic:
            return lone(ids[-1]), None
        with self._given_up_on_failure:
            if self.draft is not None and self._active:
                self.draft.set_threads(n_threads)
            if sampler.params.rule == "rejection" and sampler.params.temperature > 0:
                return self._sampled(ids, sampler, limit, n_threads)
            return self._ranked(ids, sampler, limit - 1, n_threads), None
        return lone(ids[-1]), None

    def observe(self, tokens: Sequence[int], n_nodes: int, verify_ms: float) -> None:
        """Where sizes are automatic, learn: the target chose ``tokens`` from ``n_nodes`` after ``verify_ms``."""
        if self._params.automatic:
            self.policy.observe(tokens, n_nodes, verify_ms)

    def _sampled(
        self, ids: Sequence[int], sampler: Sampler, limit: int, n_threads: int
    ) -> tuple[Tree, Mapping[int, Candidates] | None]:
        if not self._active or self.draft is None or self._backlog is None or len(self._backlog) == 0:
            return lone(ids[-1]), None
        n = min(self._params.total, limit) - 1
        if self._params.automatic:
            n = min(n, self.policy.chain_length(n_threads))
        if n > 0:
            self._backlog.read()
        return sample_chain(self.draft, ids[-1], n, sampler, len(ids))

    def _ranked(self, ids: Sequence[int], sampler: Sampler, room: int, n_threads: int) -> Tree:
        draft, backlog = (self.draft, self._backlog) if self._active else (None, None)
        if self._params.automatic:
            listener = None
            if draft is not None and backlog is not None:
                listener = Listener(draft, backlog, self._noise(sampler, len(ids)))
            return self.policy.propose(ids, room, n_threads, listener, sampler.params.temperature > 0)
        if draft is None or backlog is None or len(backlog) == 0:
            return lone(ids[-1])
        noise = self._noise(sampler, len(ids))
        try:
            noise.perturb(draft, 1)
            backlog.read()
            return draft.propose(ids[-1], self._params, room, noise)
        finally:
            noise.stop(draft)

    def _noise(self, sampler: Sampler, position: int) -> Noise:
        """What the target adds to its logits, where its choice is a sample of that kind."""
        draft, scale, min_p = self.draft, np.float32(sampler.params.temperature), sampler.params.min_p
        if draft is None or scale == 0 or sampler.params.rule != "gumbel":
            return NO_NOISE
        reach = (_SLACK - math.log(min_p)) * float(scale) if min_p > 0 else math.inf
        return Noise(lambda depth: scale * sampler.rough_gumbel(draft.vocab, position + depth - 1), reach)

    def close(self) -> None:
        """Free the head; closing again does nothing."""
        if self.draft is not None:
            self.draft.close()


class _GivenUpOnFailure:
    """A head whose numbers are broken costs the speed, never the text."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, NativeError):
            self._drafter.give_up(error)
            return True
        return False
