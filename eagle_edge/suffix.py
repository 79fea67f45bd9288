"""Free drafts: where the text's last tokens occurred before, and what followed there.

Editing, summarising and code repeat their context, so looking the last tokens up proposes whole phrases at no cost
(prompt lookup decoding, Saxena 2023; SuffixDecoding, arXiv 2411.04975). This module knows neither heads nor costs.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SuffixIndex"]

_SHORTEST = 2  # tokens that have to match
_LONGEST = 16  # tokens compared
_OCCURRENCES = 8  # latest occurrences tried


class SuffixIndex:
    """The positions of every pair of tokens of a growing text."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._ends: dict[tuple[int, int], list[int]] = {}  # a pair to the positions after it, oldest first

    def propose(self, ids: Sequence[int], n: int) -> tuple[list[int], int]:
        """At most ``n`` tokens that followed the longest suffix of ``ids`` that occurred before, and its length.

        Of several occurrences of the same length the latest counts. Nothing is proposed where the last two tokens never
        occurred. ``ids`` has to be the text of the last call and what was added since.
        """
        self._follow(ids)
        if len(ids) < _SHORTEST or n < 1:
            return [], 0
        best, longest = -1, 0
        for end in reversed(self._ends.get((ids[-2], ids[-1]), ())):
            if end == len(ids):
                continue  # the suffix itself
            length = _SHORTEST
            while length < min(_LONGEST, end) and ids[end - 1 - length] == ids[-1 - length]:
                length += 1
            if length > longest:
                best, longest = end, length
        if best < 0:
            return [], 0
        # An occurrence that overlaps the end repeats with the period it shows.
        period = len(ids) - best
        return [int(ids[best + i % period]) for i in range(n)], longest

    def _follow(self, ids: Sequence[int]) -> None:
        """Index what is new; start afresh where the text became shorter."""
        if len(self._ids) > len(ids):
            self._ids, self._ends = [], {}
        known = len(self._ids)
        self._ids += ids[known:]
        for end in range(max(known, 1) + 1, len(self._ids) + 1):
            ends = self._ends.setdefault((self._ids[end - 2], self._ids[end - 1]), [])
            ends.append(end)
            if len(ends) > _OCCURRENCES:
                del ends[0]
