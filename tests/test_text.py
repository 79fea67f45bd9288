"""Text from tokens: whole characters, exact stops, and the count of tokens that the text needs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_edge.text import TextStream


def run(pieces: list[bytes], stop: list[str]) -> tuple[list[str], TextStream]:
    """Push every piece as a token and flush; the texts in order."""
    stream = TextStream(lambda token: pieces[token], stop)
    return [*(stream.push(token) for token in range(len(pieces))), stream.flush()], stream


def obvious_cut(text: str, stop: list[str]) -> tuple[str, str | None]:
    """Read character by character; at the first that completes a stop string, cut before the longest such."""
    for end in range(1, len(text) + 1):
        hits = [s for s in stop if text[:end].endswith(s)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


PIECES = st.lists(st.binary(max_size=4), max_size=12)
UTF8 = st.lists(st.text(alphabet="ab€😀é", max_size=3), max_size=8).map(lambda parts: "".join(parts).encode())
RAGGED = st.tuples(UTF8, st.lists(st.integers(0, 3), max_size=60))


def ragged(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` in pieces of the given sizes, the rest in one."""
    pieces, at = [], 0
    for size in cuts:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@settings(max_examples=500)
@given(pieces=PIECES)
def test_any_bytes_decode_as_a_whole_would(pieces: list[bytes]) -> None:
    """However bytes are divided into tokens, the joined text is that of all bytes together."""
    texts, stream = run(pieces, [])
    assert b"".join(pieces).decode("utf-8", "replace") == "".join(texts)
    assert stream.stopped is None


@settings(max_examples=500)
@given(parts=RAGGED)
def test_characters_come_whole(parts: tuple[bytes, list[int]]) -> None:
    """Valid text never shows a replacement character, whatever bytes a token holds."""
    texts, _ = run(ragged(*parts), [])
    assert all("\N{REPLACEMENT CHARACTER}" not in text for text in texts)
    assert parts[0].decode() == "".join(texts)


@settings(max_examples=1000)
@given(
    parts=RAGGED,
    stop=st.lists(st.text(alphabet="ab€😀é", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stops_are_where_a_search_of_the_whole_text_finds_them(parts: tuple[bytes, list[int]], stop: list[str]) -> None:
    """The text, the stop string and the kept tokens equal those of a slow search."""
    pieces = ragged(*parts)
    texts, stream = run(pieces, stop)
    expected, hit = obvious_cut(parts[0].decode(), stop)
    assert (expected, hit) == ("".join(texts), stream.stopped)
    n_bytes = len(expected.encode())
    needed = [at for at in range(len(pieces)) if pieces[at] and len(b"".join(pieces[:at])) < n_bytes]
    assert stream.n_kept == (needed[-1] + 1 if needed else 0)


@settings(max_examples=500)
@given(
    pieces=PIECES, stop=st.lists(st.text(alphabet="\x00a\N{REPLACEMENT CHARACTER}", min_size=1, max_size=3), max_size=2)
)
def test_stops_work_on_any_bytes(pieces: list[bytes], stop: list[str]) -> None:
    """Broken UTF-8 does not move a stop."""
    texts, stream = run(pieces, stop)
    assert obvious_cut(b"".join(pieces).decode("utf-8", "replace"), stop) == ("".join(texts), stream.stopped)


@settings(max_examples=300)
@given(pieces=PIECES)
def test_a_token_is_kept_when_it_holds_a_byte_of_the_text(pieces: list[bytes]) -> None:
    """Without a stop every token up to the last one with bytes is needed."""
    _, stream = run(pieces, [])
    assert stream.n_kept == max((at + 1 for at, piece in enumerate(pieces) if piece), default=0)


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "n_kept"),
    [
        ([b"one", b" two", b"EN", b"D", b"more"], ["END"], "one two", 2),
        ([b"one E", b"ND"], ["END"], "one ", 1),
        ([b"END"], ["END"], "", 0),
        ([b"a", b"", b"END"], ["END"], "a", 1),
        ([b"a\xe2\x82", b"\xacEND"], ["END"], "a€", 2),
        ([b"a\xe2", b"END"], ["END"], "a\N{REPLACEMENT CHARACTER}", 1),
        ([b"abcd"], ["abcd", "bc"], "a", 1),
        ([b"xyEN", b"EN", b"D"], ["END"], "xyEN", 1),
    ],
)
def test_the_cut_is_exact(pieces: list[bytes], stop: list[str], text: str, n_kept: int) -> None:
    """The text ends before the stop string, and a token is kept if it holds a byte before the cut."""
    texts, stream = run(pieces, stop)
    assert (text, n_kept) == ("".join(texts), stream.n_kept)
    assert stream.stopped in stop


def test_nothing_certain_is_held_back() -> None:
    """Only what may begin a stop string waits, and comes as soon as it cannot."""
    pieces = [b"abc", b"EN", b"G", b"E"]
    texts, stream = run(pieces, ["END"])
    assert texts == ["abc", "", "ENG", "", "E"]
    assert stream.n_kept == 4


def test_after_a_stop_nothing_comes() -> None:
    """Tokens pushed past the stop give no text and change no count."""
    texts, stream = run([b"aEND", b"b", b"c"], ["END"])
    assert texts == ["a", "", "", ""]
    assert stream.n_kept == 1
