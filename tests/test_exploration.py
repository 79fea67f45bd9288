"""When another size is tried than the one that looks best."""

from __future__ import annotations

from eagle_edge.exploration import Exploration


def rounds_until_due(exploration: Exploration) -> int:
    n = 0
    while not exploration.is_due:
        exploration.note_round()
        n += 1
    return n


def test_lone_rows_are_timed_ever_more_rarely() -> None:
    """Often at first, when what was learnt before may hold no more, then every 64 rounds."""
    exploration, waits = Exploration(), []
    for _ in range(6):
        waits.append(rounds_until_due(exploration))
        exploration.note_lone(3.0, 3.0)
    assert waits == [8, 16, 32, 64, 64, 64]


def test_rounds_worth_much_wait_longer() -> None:
    """A round that is worth more than most is spoilt for a comparison only thrice as late."""
    exploration = Exploration()
    for _ in range(100):
        exploration.note_gain(1.0)
    for _ in range(9):
        exploration.note_round()
    assert exploration.wants_lone(0.5)
    assert not exploration.wants_lone(2.0)
    for _ in range(16):
        exploration.note_round()
    assert exploration.wants_lone(2.0)


def test_a_surprise_is_looked_into_at_once_and_not_for_ever() -> None:
    """A lone row that takes half as long again is timed again in the next rounds, three times in a row at most."""
    exploration = Exploration()
    again = []
    for _ in range(4):
        exploration.note_lone(4.5, 3.0)
        again.append(exploration.is_due)
    assert again == [True, True, True, False]


def test_looks_keep_within_their_share() -> None:
    """Half a percent of the time goes into sizes that may be cheaper than believed, and no round but every fourth."""
    exploration, explored_ms = Exploration(), 0.0
    for n in range(4000):
        extra_ms = 2.0 if exploration.may_look(n) else 0.0
        assert extra_ms == 0.0 or n % 4 == 0
        explored_ms += extra_ms
        exploration.note_time(4.0 + extra_ms, extra_ms)
    assert 0.004 < explored_ms / 16000 < 0.006
