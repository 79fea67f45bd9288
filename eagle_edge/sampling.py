"""From the target's logits to a token: penalties, bias, grammar, temperature, filters, and a repeatable choice.

`process` applies, in this order: penalties, logit bias, grammar, temperature, top-k, top-p, min-p. The logarithmic
probabilities that are reported belong to the raw logits, before all of them. Randomness comes from `noise.py`: the
choice at sequence position t depends on the seed, on t and on the logits, never on what was drafted.

This module knows neither trees nor models.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from . import noise
from .config import SamplingParams
from .errors import NativeError, NoTokenLeftError
from .filters import Candidates, filtered

__all__ = ["Constraint", "Sampler", "TokenLogprob", "logprobs"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """A grammar at its current place in the text."""

    def mask(self) -> Bool:
        """[V] True for the tokens that may follow."""

    def accept(self, token: int) -> None:
        """Step over one token."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a chosen token and the most probable tokens in its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(logits: Float32, token: int, n: int) -> TokenLogprob:
    """Natural log-probabilities under the raw logits [V]: of ``token``, and of the n best (ties: the lowest id)."""
    largest = logits.max()
    shifted = logits - largest
    log_total = np.log(np.exp(shifted).sum(dtype=np.float64))
    best: tuple[tuple[int, float], ...] = ()
    if n:
        top = filtered(logits, float(largest), 1.0, top_k=n)
        order = np.argsort(-top.scores, kind="stable")
        best = tuple((int(top.ids[i]), float(top.scores[i] - log_total)) for i in order)
    return TokenLogprob(token, float(shifted[token] - log_total), best)


class Sampler:
    """The choices of one generation: parameters, the tokens accepted so far, and the grammar's place.

    Args:
        params: what to apply.
        n_vocab: V, the number of logits.
        prompt_ids: tokens before the first choice; penalties see them.
        end_ids: the model's own end-of-generation tokens.
        constraint: the compiled grammar of ``params``, at its start.

    Attributes:
        seed: the seed in use; drawn once when ``params.seed`` is None.

    Raises:
        ValueError: a token id of ``logit_bias`` or ``stop_token_ids`` is outside the vocabulary, or ``params`` asks for
            a grammar and no constraint is given.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        prompt_ids: Iterable[int] = (),
        end_ids: Iterable[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        if constraint is None and (params.grammar is not None or params.json_schema is not None):
            raise ValueError("a grammar is asked for and none was compiled; pass it as constraint")
        self._constraint = constraint
        self._adjusted = np.empty(n_vocab, np.float32)
        bias = dict(params.logit_bias)
        end_ids = tuple(end_ids)
        if params.ignore_eos:
            bias.update((token, -np.inf) for token in end_ids)
        self._ends = frozenset(end_ids) | frozenset(params.stop_token_ids)
        for token in (*bias, *params.stop_token_ids):
            if token >= n_vocab:
                raise ValueError(f"token id {token} is outside the vocabulary; use 0 to {n_vocab - 1}")
        self._bias_ids = np.fromiter(bias.keys(), np.int32, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        penalises = params.repeat_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        self._penalty_window = params.penalty_last_n if penalises else 0
        self._temperature = max(params.temperature, 1e-30)
        # Whether every token of the vocabulary is a candidate, so that there is nothing to sort out.
        self._takes_any = (
            (params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0) and constraint is None and not bias
        )
        self._recent: deque[int] = deque()
        self._counts: dict[int, int] = {}
        for token in prompt_ids:
            self._count(token)

    def is_end(self, token: int) -> bool:
        """True when ``token`` ends the generation."""
        return token in self._ends

    def pick(self, logits: Float32, position: int) -> int:
        """The token at sequence ``position`` under logits [V] float32, which stay untouched.

        Temperature 0 takes the largest processed logit (ties: the lowest id). Above 0 it is the Gumbel-max sample of
        the processed logits with the noise of (seed, position).

        Raises:
            NoTokenLeftError: bias or grammar allow no token.
            NativeError: a logit is NaN or +inf.
        """
        if self.params.temperature == 0:
            return self._best(self._adjust(logits))[1]
        if self._takes_any:
            adjusted = self._adjust(logits)
            key = noise.key(self.seed, position, noise.PICK)
            return noise.gumbel_argmax(key, None, adjusted, self._best(adjusted)[0], self._temperature)
        return self.choose(self.process(logits), position, noise.PICK)

    def choose(self, candidates: Candidates, position: int, stream: int) -> int:
        """The sample of ``candidates`` with the noise of (seed, position, stream); see ``noise.py`` for streams."""
        key = noise.key(self.seed, position, stream)
        return int(candidates.ids[noise.gumbel_argmax(key, candidates.ids, candidates.scores)])

    def gumbel(self, ids: Int32, position: int) -> Float64:
        """[M] the noise `pick` adds to the scores of ``ids`` at ``position``: with it a draft guesses the sample."""
        return noise.gumbel(noise.key(self.seed, position, noise.PICK), ids)

    def rough_gumbel(self, ids: Int32, position: int) -> Float32:
        """[M] the noise of `gumbel` in single precision: enough to guess with, several times as fast."""
        return noise.rough_gumbel(noise.key(self.seed, position, noise.PICK), ids)

    def accept(self, token: int) -> None:
        """Move on by one token of the text: penalties count it, the grammar steps over it."""
        if self._constraint is not None:
            self._constraint.accept(token)
        self._count(token)

    def process(self, logits: Float32) -> Candidates:
        """The tokens left and their scores after every step of the module's docstring; one token at temperature 0.

        Raises:
            NoTokenLeftError: bias or grammar allow no token.
            NativeError: a logit is NaN or +inf.
        """
        adjusted = self._adjust(logits)
        top, token = self._best(adjusted)
        params = self.params
        if params.temperature == 0:
            return Candidates(np.array([token], np.int32), np.zeros(1, np.float32))
        return filtered(adjusted, top, self._temperature, params.top_k, params.top_p, params.min_p)

    def _adjust(self, logits: Float32) -> Float32:
        """[V] logits after penalties, bias and grammar: a copy, good until the next one, where any of them applies."""
        if not (self._counts or len(self._bias_ids) or self._constraint is not None):
            return logits
        out = self._adjusted
        np.copyto(out, logits)
        if self._counts:
            self._penalise(out)
        out[self._bias_ids] += self._bias
        if self._constraint is not None:
            out[~self._constraint.mask()] = -np.inf
        return out

    def _penalise(self, logits: Float32) -> None:
        """Lower, in place, the logits of the tokens in the window; the formulas are those of llama.cpp."""
        ids = np.fromiter(self._counts.keys(), np.int32, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        seen = logits[ids]
        repeat = np.float32(self.params.repeat_penalty)
        seen = np.where(seen > 0, seen / repeat, seen * repeat)
        seen -= counts * np.float32(self.params.frequency_penalty) + np.float32(self.params.presence_penalty)
        logits[ids] = seen

    def _best(self, adjusted: Float32) -> tuple[float, int]:
        """The largest logit and its token. NumPy's argmax finds NaN first, so one look tells bad logits too."""
        token = int(adjusted.argmax())
        top = float(adjusted[token])
        if math.isfinite(top):
            return top, token
        if top != -np.inf:
            raise NativeError("the target returned logits that are not numbers; its file or its kernels are broken")
        if self._constraint is not None and not self._constraint.mask().any():
            raise NoTokenLeftError("the grammar allows no token here")
        if self._constraint is not None:
            raise NoTokenLeftError("logit_bias and ignore_eos ban every token the grammar allows here")
        raise NoTokenLeftError("logit_bias bans every token of the vocabulary")

    def _count(self, token: int) -> None:
        if self._penalty_window == 0:
            return
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._penalty_window < 0:
            return
        self._recent.append(token)
        if len(self._recent) > self._penalty_window:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
