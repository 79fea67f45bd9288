"""From tokens to text, piece by piece: characters only when their bytes are complete, nothing past a stop string.

Bytes that are no UTF-8 become U+FFFD, so the pieces joined are ``bytes.decode("utf-8", "replace")`` of the whole. Of
several stop strings the one that is complete first ends the text, and of those complete together the longest; the text
ends before it, so how tokens divide the text changes nothing. This module knows no vocabulary: it is given the bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

__all__ = ["TextStream"]


class TextStream:
    """Turns the tokens of one generation into text that will not be taken back.

    Args:
        piece: the bytes of a token; control tokens may have none.
        stop: strings that end the text where they begin.

    Attributes:
        stopped: the stop string that ended the text, or None.
        n_kept: how many of the pushed tokens the text needs: up to the last one that holds a byte of it. After a stop
            these are the tokens before the cut; until then it may still grow by text that is held back.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self._piece = piece
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_pushed = 0
        self._last_byte_token = 0  # the token of the newest byte, counted from 1
        self._held: list[tuple[str, int]] = []  # characters that may begin a stop string, and the token each ends in
        self.stopped: str | None = None
        self.n_kept = 0

    def push(self, token: int) -> str:
        """The text that is certain once ``token`` is known; empty when a stop string has ended the text."""
        self._n_pushed += 1
        return self._advance(self._decode(self._piece(token)))

    def flush(self) -> str:
        """The rest of the text at the end of the generation: what was held back, and U+FFFD for unfinished bytes."""
        unfinished = self._decoder.decode(b"", final=True)
        text = self._advance([(character, self._last_byte_token) for character in unfinished])
        return text + ("" if self.stopped else self._release(len(self._held)))

    def _decode(self, data: bytes) -> list[tuple[str, int]]:
        """The characters completed by ``data``, each with the token (counted from 1) that holds its last byte."""
        token = self._n_pushed
        if data.isascii() and not self._decoder.getstate()[0]:
            self._last_byte_token = token if data else self._last_byte_token
            return [(character, token) for character in data.decode("ascii")]
        out: list[tuple[str, int]] = []
        for at in range(len(data)):
            waiting = self._decoder.getstate()[0]
            found = self._decoder.decode(data[at : at + 1])
            # With bytes waiting, this one either completes their character, or ends it (U+FFFD) and starts anew.
            ends_before = bool(waiting) and (len(found) == 2 or bool(self._decoder.getstate()[0]))
            for index, character in enumerate(found):
                out.append((character, self._last_byte_token if index == 0 and ends_before else token))
            self._last_byte_token = token
        return out

    def _advance(self, characters: list[tuple[str, int]]) -> str:
        """Add characters; the text that no stop string can take back any more."""
        if self.stopped is not None:
            return ""
        if not self._stop:
            self._held += characters
            return self._release(len(self._held))
        for character in characters:
            self._held.append(character)
            tail = "".join(held for held, _ in self._held[-self._longest :])
            hits = [stop for stop in self._stop if tail.endswith(stop)]
            if hits:
                self.stopped = max(hits, key=len)
                text = self._release(len(self._held) - len(self.stopped))
                self._held.clear()
                return text
        return self._release(len(self._held) - self._n_possible())

    def _n_possible(self) -> int:
        """How many of the newest characters are the beginning of some stop string."""
        tail = "".join(held for held, _ in self._held[-self._longest :])
        for length in range(min(len(tail), self._longest - 1), 0, -1):
            if any(stop.startswith(tail[-length:]) for stop in self._stop):
                return length
        return 0

    def _release(self, n: int) -> str:
        """The first n held characters, which become text."""
        out, self._held = self._held[:n], self._held[n:]
        self.n_kept = out[-1][1] if out else self.n_kept
        return "".join(character for character, _ in out)
