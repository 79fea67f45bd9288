"""Side-by-side measurements: what is counted, who answers, and what a table says of it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from eagle_edge.bench.comparison import ALL, Comparison
from eagle_edge.bench.meters import Energy, read_bandwidth, weight_bytes
from eagle_edge.bench.ours import Ours
from eagle_edge.bench.padding import padded_prompts
from eagle_edge.bench.picture import check_drawing, draw
from eagle_edge.bench.python_rival import PythonRival
from eagle_edge.bench.runs import Prompt, Run, Watch
from eagle_edge.bench.server_rival import ServerRival
from eagle_edge.cli.bench import _measure
from eagle_edge.cli.options import PairOptions, TargetOptions
from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.engine import Engine
from eagle_edge.errors import DependencyError, FileFormatError, NativeError
from eagle_edge.gguf_header import read_header
from eagle_edge.questions import Question


def test_a_rate_counts_what_comes_after_the_first_delivery() -> None:
    """Tokens over the time from the first delivery to the last; those of one delivery have no time between them."""
    times = iter([0.0, 1.0, 1.5, 3.0, 3.5])
    watch = Watch(lambda: next(times))
    for n in (1, 3, 2):
        watch.deliver(n, "x" * n)
    watch.deliver(0)
    run = watch.run
    assert (run.n_tokens, run.n_first, run.first_ms, run.seconds) == (6, 1, 1000.0, 2.5)
    assert run.tokens_per_second == 2.0
    assert run.gaps_ms == [500.0, 0.0, 0.0, 1500.0, 0.0]
    assert np.isnan(Run(1, 1, 5.0).tokens_per_second)


class Metronome:
    """Answers at a fixed rate that depends on the length of the prompt; no model, to check the sums."""

    def __init__(self, name: str, factor: float, accepted: int = 0) -> None:
        self.name, self._factor, self._accepted = name, factor, accepted

    def answer(self, prompt: Prompt, params: SamplingParams) -> Run:
        rate = self._factor * len(prompt.ids)
        n_rounds = 11 - self._accepted
        return Run(11, 1, 3.0, 10 / rate, [1.0] * 10, prompt.text, n_rounds, 2 * n_rounds, self._accepted)

    def close(self) -> None: ...


def test_ratios_are_medians_over_prompts() -> None:
    """Every contender meets every prompt at every temperature; ratios pair prompts; all sets come last."""
    names: list[str] = []
    comparison = Comparison([Metronome("plain", 1.0), Metronome("other", 1.5, accepted=6)], bound=10.0)
    prompts = [Prompt(s, f"{s}{n}", [0] * n) for s in ("a", "b") for n in (1, 2, 5)]
    comparison.run(prompts, SamplingParams(max_tokens=4), [0.0, 1.0], names.append)
    assert names[:4] == ["plain", "other", "other", "plain"]
    rows = comparison.rows()
    assert [row["set"] for row in rows] == ["a"] * 4 + ["b"] * 4 + [ALL] * 4
    assert len(names) == 24
    other = rows[-1]
    assert (other["contender"], other["temperature"], other["prompts"]) == ("other", 1.0, 6)
    assert (other["tokens_per_second"], other["ratio"], other["ratio_spread"]) == (3.0, 1.5, [1.5, 1.5])
    assert rows[-2]["versus"] == {"other": pytest.approx(1 / 1.5, abs=1e-3)}
    assert (other["tau"], other["draft_n_per_round"], other["same_text"]) == (2.2, 2.0, 1.0)
    assert other["of_limit"] == pytest.approx(3.0 / (2.2 * 10), abs=1e-3)
    comparison.bound = 20.0
    assert comparison.rows()[-1]["of_limit"] == pytest.approx(3.0 / (2.2 * 20), abs=1e-3)


def test_the_memory_limit_is_the_better_of_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that others kept from us at one time are no limit."""
    found = iter([1e6, 4e6])
    monkeypatch.setattr("eagle_edge.cli.bench.read_bandwidth", lambda *_: next(found))
    monkeypatch.setattr("eagle_edge.cli.bench.weight_bytes", lambda _: 10**5)
    contenders, prompts = [Metronome("plain", 1.0)], [Prompt("a", "a", [0, 0])]
    rows = _measure(contenders, prompts, SamplingParams(max_tokens=4), [0.0], PairOptions(), TargetOptions())
    assert rows[0]["of_limit"] == pytest.approx(rows[0]["tokens_per_second"] / 40, abs=1e-3)


def test_padding_gives_the_length_asked_for() -> None:
    """A padded conversation has as many tokens as asked for, ends with the question, and says nothing of itself."""

    def tokens(text: str) -> list[int]:
        return list(text.encode())

    questions = [Question("s", 0, "Why?"), Question("s", 1, "How does it work, then?")]
    prompts = padded_prompts(questions, [0, 100], lambda text: tokens(f"<{text}>"), tokens, lambda i: bytes(i).decode())
    assert [p.text for p in prompts[:2]] == [q.text for q in questions]
    for prompt, question in zip(prompts[2:], questions, strict=True):
        assert prompt.text.endswith("\n\n" + question.text)
        assert abs(len(prompt.ids) - 100) <= 2
        assert question.text not in prompt.text[: -len(question.text)]
    with pytest.raises(ValueError, match="more than 10"):
        padded_prompts(questions, [10], lambda text: tokens(f"<{text}>"), tokens, lambda i: bytes(i).decode())


def test_padding_never_exceeds_the_length_asked_for() -> None:
    """Filler that is read back as more tokens than it was cut from is shortened until the conversation fits."""

    def encode(text: str) -> list[int]:
        return [token for byte in text.encode() for token in ([byte, 0] if byte == ord("e") else [byte])]

    questions = [Question("s", 0, "Why?"), Question("s", 1, "Everywhere else, even here?")]
    prompts = padded_prompts(questions, [100], encode, lambda t: list(t.encode()), lambda i: bytes(i).decode())
    for prompt, question in zip(prompts, questions, strict=True):
        assert 90 <= len(prompt.ids) <= 100
        assert encode(prompt.text) == prompt.ids
        assert prompt.text.endswith(question.text)


def test_energy_counts_every_package_and_a_counter_that_starts_again(tmp_path: Path) -> None:
    """Joules are the sum over packages; sub-zones are part of them; a missing or closed counter is None, not zero."""
    for zone, spent in (("intel-rapl:0", 900), ("intel-rapl:1", 100), ("intel-rapl:0:0", 5)):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "energy_uj").write_text(str(spent))
        (tmp_path / zone / "max_energy_range_uj").write_text("1000")
    meter = Energy(tmp_path)
    before = meter.read()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("50")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("175")
    assert meter.since(before) == pytest.approx(225e-6)
    assert Energy(tmp_path / "nothing").since([]) is None


@pytest.mark.native
def test_the_limit_is_what_the_file_holds(tiny_target: Path) -> None:
    """Weights read for a row: everything but an embedding that is only looked up; bandwidth is a positive number."""
    tensors = read_header(str(tiny_target)).tensors
    total = sum(tensor.n_bytes for tensor in tensors.values())
    looked_up = tensors["token_embd.weight"].n_bytes if "output.weight" in tensors else 0
    assert weight_bytes(tiny_target) == total - looked_up
    assert 1e8 < read_bandwidth(1 << 22, 1) < 1e13


@pytest.mark.native
def test_our_engine_counts_as_its_statistics_do(tiny_target: Path, tiny_head: Path) -> None:
    """Tokens, rounds and phases of a contender are those of the engine, and plain and drafted texts are the same."""
    with Engine(tiny_target, tiny_head, TargetParams(n_ctx=256, n_threads=1)) as engine:
        prompt, params = Prompt("s", "x", list(range(10, 30))), SamplingParams(max_tokens=24)
        runs = [Ours("a", engine, how).answer(prompt, params) for how in (DraftParams(1), DraftParams.chain(3))]
        assert runs[0].n_tokens == runs[0].rounds == engine.stats.generated_n
        assert runs[0].text == runs[1].text
        assert runs[1].n_tokens <= runs[1].rounds + runs[1].draft_n_accepted
        assert set(runs[1].phases) == {"draft", "verify", "other"}


@pytest.mark.model
def test_llama_cpp_python_answers_beside_us(packaged_target: Path) -> None:
    """Its process generates as many tokens as asked for, one a round, and the same text every time."""
    rival = PythonRival(packaged_target, n_ctx=256, n_threads=1)
    try:
        prompt, params = Prompt("s", "Why is the sky blue?", []), SamplingParams(max_tokens=8)
        runs = [rival.answer(prompt, params) for _ in range(2)]
    finally:
        rival.close()
    assert [run.n_tokens for run in runs] == [8, 8]
    assert runs[0].text == runs[1].text != ""
    assert runs[0].rounds == 8


class Completions(BaseHTTPRequestHandler):
    """Speaks OpenAI's streaming chat completions as a llama-server does."""

    usage: ClassVar[dict[str, int] | None] = {"prompt_tokens": 5, "completion_tokens": 7}

    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["max_tokens"] == 99:
            self.send_error(400)
            return
        pieces = [{"delta": {"role": "assistant", "content": None}}, {"delta": {"content": "a é"}}]
        pieces += [{"delta": {"content": "b"}}, {"delta": {}, "finish_reason": "stop"}]
        events: list[dict[str, Any]] = [{"choices": [piece]} for piece in pieces]
        events.append({"choices": [], "usage": self.usage, "timings": {"draft_n": 6, "draft_n_accepted": 3}})
        self._send("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n")

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Completions)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_servers_tokens_are_counted_from_its_usage(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the pieces of text it sends; drafts are counted where it tells them; no usage is an error."""
    rival = ServerRival(f"mine={address}/v1")
    run = rival.answer(Prompt("s", "x", []), SamplingParams(max_tokens=9))
    assert (rival.name, run.n_tokens, run.text) == ("mine", 7, "a éb")
    assert (run.draft_n, run.draft_n_accepted, run.rounds) == (6, 3, 4)
    monkeypatch.setattr(Completions, "usage", None)
    with pytest.raises(NativeError, match="no usage"):
        rival.answer(Prompt("s", "x", []), SamplingParams(max_tokens=9))
    with pytest.raises(NativeError, match="400"):
        rival.answer(Prompt("s", "x", []), SamplingParams(max_tokens=99))


def test_nobody_there_is_one_clear_error() -> None:
    """A closed port names the address, at once."""
    with pytest.raises(NativeError, match=r"127\.0\.0\.1:9: no server answers"):
        ServerRival("http://127.0.0.1:9")


def test_the_picture_has_a_bar_for_everybody(tmp_path: Path) -> None:
    """A PNG of every set, context and temperature."""
    pytest.importorskip("matplotlib")
    check_drawing(tmp_path / "bars.png")
    comparison = Comparison([Metronome("plain", 1.0), Metronome("other", 2.0)], bound=10.0)
    comparison.run([Prompt("a", "a", [0, 0])], SamplingParams(max_tokens=4), [0.0, 1.0], lambda name: None)
    draw(comparison.rows(), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DependencyError, match="pip install"):
        check_drawing(Path("bars.png"))


def test_a_picture_that_cannot_be_written_is_said_before_the_measurement(tmp_path: Path) -> None:
    """A folder that is not there and an ending that is no picture's, each in one line."""
    pytest.importorskip("matplotlib")
    with pytest.raises(FileFormatError, match="no folder"):
        check_drawing(tmp_path / "nothing" / "bars.png")
    with pytest.raises(FileFormatError, match=r"pictures end in \.png"):
        check_drawing(tmp_path / "bars.table")
