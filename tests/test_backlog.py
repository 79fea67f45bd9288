"""Pairs that wait for the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_edge.backlog import Backlog


class Recorder:
    """Reads pairs, noting tokens and taps; ``interrupt`` makes the next reading end in Ctrl-C after it happened."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.taps: list[float] = []
        self.calls: list[tuple[int, bool]] = []
        self.interrupt = False

    @property
    def n_pairs(self) -> int:
        return len(self.tokens)

    def extend(self, next_tokens: Sequence[int], taps: Any, *, last: bool = True) -> None:
        self.tokens += next_tokens
        self.taps += taps[:, 0].tolist()
        self.calls.append((len(next_tokens), last))
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt

    def rewind(self, n_pairs: int) -> None:
        del self.tokens[n_pairs:], self.taps[n_pairs:]


def add(backlog: Backlog, tokens: Sequence[int]) -> None:
    backlog.add(backlog.n_pairs, tokens, np.array(tokens, np.float32).reshape(-1, 1) + 0.5)


def test_nothing_is_read_before_it_is_needed() -> None:
    """Pairs of many rounds reach the head in one call, in order, each with its own taps."""
    head = Recorder()
    backlog = Backlog(head)
    for tokens in ([1], [2, 3], [4]):
        add(backlog, tokens)
    assert (head.calls, backlog.n_pairs, len(backlog)) == ([], 4, 4)
    backlog.read()
    assert head.calls == [(4, True)]
    assert head.tokens == [1, 2, 3, 4]
    assert head.taps == [1.5, 2.5, 3.5, 4.5]
    backlog.read()
    assert head.calls == [(4, True)]


def test_memory_is_bounded() -> None:
    """Past the bound all but the newest pair are read without a draft, so that one is left to draft from."""
    head = Recorder()
    backlog = Backlog(head, most=8)
    for token in range(30):
        add(backlog, [token])
        assert 1 <= len(backlog) <= 8
    backlog.read()
    assert head.tokens == list(range(30))
    assert [last for _, last in head.calls] == [False] * (len(head.calls) - 1) + [True]


@given(st.lists(st.tuples(st.sampled_from("arR"), st.integers(0, 12)), max_size=40))
def test_whatever_happens_the_head_reads_the_text(events: list[tuple[str, int]]) -> None:
    """Additions, readings and rewinds in any order leave the head with a prefix of the text, and no gap."""
    head, text, token = Recorder(), [], 0
    backlog = Backlog(head, most=10)
    for what, n in events:
        if what == "a" and n:
            add(backlog, range(token, token + n))
            text += list(range(token, token + n))
            token += n
        elif what == "r":
            backlog.read(last=n % 2 == 0)
        elif n <= len(text):
            backlog.rewind(n)
            if head.n_pairs > n:
                head.rewind(n)
            del text[n:]
        assert backlog.n_pairs == len(text)
        assert head.tokens == text[: head.n_pairs]
        assert head.taps == [t + 0.5 for t in head.tokens]
    backlog.read()
    assert head.tokens == text


def test_an_interrupted_reading_is_not_repeated() -> None:
    """Ctrl-C after the head has read and before that is noted leaves every pair read once."""
    head = Recorder()
    backlog = Backlog(head)
    add(backlog, [1, 2, 3])
    head.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        backlog.read()
    add(backlog, [4])
    backlog.read()
    assert head.tokens == [1, 2, 3, 4]


def test_a_gap_is_refused() -> None:
    """Pairs that do not follow are a mistake of the caller."""
    backlog = Backlog(Recorder())
    with pytest.raises(ValueError, match="position 3 do not follow the 0"):
        backlog.add(3, [1], np.zeros((1, 1), np.float32))
