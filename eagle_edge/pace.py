"""How fast a text has come lately, and what rounds take beyond the calls they make."""

from __future__ import annotations

from typing import Any

from .round import Kind, Round

__all__ = ["Pace"]

_SMOOTHING = 1 / 32  # of a round in running means
# Of an ordinary laptop, until it is known.
_GUESSED_REST_MS = {Kind.IDLE: 0.2, Kind.REPEATED: 0.35, Kind.HABIT: 0.3, Kind.WORKED_OUT: 0.6}
_REST = 0.1  # of an evaluation, about the most that the rest of a round takes


class Pace:
    """Running means of tokens and of time, which is counted in plain rounds."""

    def __init__(self) -> None:
        self._tokens = self._time = 1.0
        self._rest_ms = dict(_GUESSED_REST_MS)  # Python, sampling, text, the reader of the text
        self._n_rests = dict.fromkeys(Kind, 0)

    def rate(self, lone_ms: float) -> float:
        """Tokens that a millisecond brings, at least those of plain decoding, whose evaluations take ``lone_ms``."""
        return max(self._tokens / self._time, 1.0) / (lone_ms + self._rest_ms[Kind.IDLE])

    def note(self, tokens: float, calls_ms: float, lone_ms: float) -> None:
        """Learn from a round by what is expected of it: tokens, and the time of its calls."""
        rest = self._rest_ms[Kind.IDLE]
        self._tokens += _SMOOTHING * (tokens - self._tokens)
        self._time += _SMOOTHING * ((calls_ms + rest) / (lone_ms + rest) - self._time)

    def note_rest(self, done: Round, now: float) -> None:
        """Learn what a round took, beyond its calls, until ``now``, when the next one begins."""
        rest, mean = (now - done.started) * 1e3 - done.verify_ms - done.head_ms, self._rest_ms[done.kind]
        rest = min(max(rest, 0.0), 2 * mean + _REST * done.verify_ms)  # a reader may take his time with a token
        self._n_rests[done.kind] += 1
        self._rest_ms[done.kind] = mean + max(1 / self._n_rests[done.kind], _SMOOTHING) * (rest - mean)

    def rest_ms(self, kind: Kind) -> float:
        """What a round of this kind takes beyond its calls."""
        return self._rest_ms[kind]

    def more_rest_ms(self, kind: Kind, than: Kind) -> float:
        """What a round of one kind takes more than one of another, beyond their calls."""
        return max(self._rest_ms[kind] - self._rest_ms[than], 0.0)

    def to_json(self) -> list[float]:
        """What is worth keeping."""
        return [self._tokens, self._time]

    def restore(self, state: Any) -> None:
        """Take over what ``to_json`` gave; anything else raises ValueError or TypeError."""
        self._tokens, self._time = (min(max(float(mean), 1.0), 256.0) for mean in state)
