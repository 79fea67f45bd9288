"""The commands as a user runs them: real processes where exit codes and streams matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import HEAD, head_tensors, make_head, write_head

pytestmark = pytest.mark.native


def run(*arguments: str | Path, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``eagle-edge`` with a timeout and check its exit code."""
    command = [sys.executable, "-P", "-m", "eagle_edge", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done


def report(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def pair(tiny_target: Path, tiny_head: Path) -> list[str]:
    return ["--target", str(tiny_target), "--head", str(tiny_head), "--n-ctx", "256", "--exact", "strict"]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    for name in ("one", "two"):
        lines = [json.dumps({"question_id": i, "turns": [f"Question {i} of {name}?", "And then?"]}) for i in range(3)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def test_generate_reports_every_figure(pair: list[str]) -> None:
    """The JSON holds the promised keys, and its counts agree with each other."""
    out = report("generate", *pair, "-p", "hello", "-n", "20", "--tree", "16/3/4")
    keys = (
        "text token_ids finish_reason prompt_n generated_n rounds draft_n draft_n_accepted tau tokens_per_second "
        "seconds exact"
    )
    assert set(keys.split()) <= set(out)
    assert set(out["seconds"]) == {"prefill", "draft", "verify", "other"}
    assert out["generated_n"] == len(out["token_ids"]) <= out["rounds"] + out["draft_n_accepted"]
    assert out["tau"] == pytest.approx((out["rounds"] + out["draft_n_accepted"]) / out["rounds"], abs=1e-3)
    assert out["exact"] is True


def test_generate_gives_the_same_text_however_it_is_drafted(pair: list[str]) -> None:
    """Plain, chain and tree answer alike, greedily and with a seed; text on stdout, figures on stderr."""
    for sampling in ([], ["--temperature", "0.8", "--seed", "3", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.02"]):
        outs = {
            run("generate", *pair, "-p", "hello", "-n", "30", *sampling, *how).stdout
            for how in (["--no-draft"], ["--chain", "4"], ["--tree", "30/4/5"], ["--tree", "1/7/10"])
        }
        assert len(outs) == 1
    done = run("generate", *pair, "-p", "-", "-n", "5", stdin="hello")
    assert "tokens/s" in done.stderr
    assert "tokens/s" not in done.stdout


def test_verify_finds_no_mismatch(pair: list[str], questions: Path) -> None:
    """Drafted texts over a folder of questions equal plain ones, and the report says how much was compared."""
    out = report("verify", questions, *pair, "--sets", "one,two", "--limit", "2", "-n", "24", "--tree", "20/4/4")
    assert (out["prompts"], out["mismatches"], out["mismatch_list"]) == (4, 0, [])
    assert out["tokens"] > 4
    sampled = ["--temperature", "0.8", "--seed", "1", "--chain", "4"]
    assert report("verify", questions, *pair, "--limit", "1", "-n", "24", *sampled)["mismatches"] == 0


def test_bench_reports_a_row_for_everybody(pair: list[str], questions: Path) -> None:
    """Rows of both sets and of all, with the promised keys and shares that sum to one; texts are the same."""
    rows = report("bench", questions, *pair, "--limit", "2", "-n", "16", "--chain", "3")
    assert [(row["set"], row["contender"]) for row in rows] == [
        (name, who) for name in ("one", "two", "all") for who in ("plain", "drafted")
    ]
    keys = (
        "set context temperature contender prompts tokens_per_second ratio ratio_spread first_ms p95_ms same_text "
        "versus tau draft_n_per_round accept_by_depth share of_limit tokens_per_joule"
    )
    assert set(keys.split()) == set(rows[0])
    for row in rows:
        assert sum(row["share"].values()) == pytest.approx(1, abs=1e-3)
        assert row["tokens_per_second"] > 0 < row["ratio"]
        assert row["same_text"] == 1


def test_bench_sweeps_lengths_and_temperatures(pair: list[str], questions: Path) -> None:
    """Fixed trees beside plain and automatic ones, at every context and temperature asked for."""
    options = ("--sets", "one", "--limit", "1", "-n", "4", "--sweep", "--temperatures", "0,1")
    rows = report("bench", questions, *pair, *options, "--context", "0", "--context", "120")
    assert {(row["context"], row["temperature"]) for row in rows} == {(0, 0), (0, 1), (120, 0), (120, 1)}
    assert {"plain", "drafted", "head alone", "chain 1", "60/7/10"} <= {row["contender"] for row in rows}


def test_inspect_says_whether_a_pair_fits(pair: list[str], tiny_target: Path, tmp_path: Path) -> None:
    """A pair that fits is measured; one that does not is explained, with exit code 1."""
    out = report("inspect", *pair)
    assert out["fits"] is True
    assert out["head"]["tap_layers"] == list(HEAD.taps)
    assert out["here"]["exact"] is True
    other = make_head(tmp_path / "other.gguf", n_embd_target=96)
    out = report("inspect", "--target", tiny_target, "--head", other, code=1)
    assert out["fits"] is False
    assert "96" in out["differences"][0]
    assert "fits: yes" in run("inspect", *pair, "--no-load").stdout


def test_chat_answers_and_obeys_its_commands(pair: list[str]) -> None:
    """Turns, commands and the end of input, through a pipe."""
    lines = "hello\n/stats\n/draft off\nagain\n/draft on\n/reset\n/nonsense\nmore\n/quit\nnever read\n"
    done = run("chat", *pair, "-n", "8", stdin=lines)
    assert done.stderr.count("tokens/s") == 4  # three answers and /stats
    for text in ("drafting is off", "drafting is on", "the conversation is empty", "/quit"):
        assert text in done.stderr
    run("chat", *pair, "-n", "4", stdin="hello\n")


BAD_NUMBERS = {
    "nan": lambda tensors: tensors["fc.weight"].__setitem__((0, 0), np.nan),
    "range": lambda tensors: tensors["d2t"].__setitem__(-1, 99999),
}


@pytest.mark.parametrize("case", ["missing", "text", "cut", "target as head", "head as target", "taps", "nan", "range"])
def test_bad_files_are_one_clear_line(case: str, tiny_target: Path, tiny_head: Path, tmp_path: Path) -> None:
    """Whatever is wrong with a file: exit code 1, one line on stderr that names it, nothing on stdout."""
    target, head, name = tiny_target, tmp_path / "bad.gguf", "bad.gguf"
    if case == "text":
        head.write_text("not a model at all")
    elif case == "cut":
        head.write_bytes(tiny_head.read_bytes()[: tiny_head.stat().st_size // 2])
    elif case == "target as head":
        head.write_bytes(tiny_target.read_bytes())
    elif case == "head as target":
        target, head, name = tiny_head, tiny_head, tiny_head.name
    elif case == "taps":
        make_head(head, taps=(1, 2, 99))
        name = "99"
    elif case in BAD_NUMBERS:
        tensors = head_tensors(HEAD)
        BAD_NUMBERS[case](tensors)
        write_head(head, HEAD, tensors)
    done = run("generate", "--target", target, "--head", head, "-p", "hello", "-n", "4", code=1)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("eagle-edge: ")
    assert name in lines[0]
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "-p", "x " * 400], "context 256"),
        (["generate", "-p", "x", "--tree", "60/1/2"], "60"),
        (["generate", "-p", "x", "--temperature", "-1"], "temperature"),
        (["generate", "-p", "x", "--grammar", "no-such-file"], "no-such-file"),
        (["verify", "no-such-folder"], "no-such-folder"),
        (["verify", ".", "--temperature", "1"], "--seed"),
        (["bench", "."], "no question"),
        (["bench", ".", "--replay", "abacus"], "rtx-4090"),
    ],
)
def test_impossible_requests_are_one_clear_line(arguments: list[str], message: str, pair: list[str]) -> None:
    """Values that cannot be are refused with exit code 1 before anything is generated."""
    done = run(*arguments, *pair, code=1)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_usage_errors_exit_with_2(pair: list[str]) -> None:
    """Unknown commands, missing options and a malformed tree are usage errors."""
    for arguments in (["nonsense"], ["generate"], ["generate", "-p", "x", "--tree", "sixty"], ["verify"]):
        run(*arguments, *(pair if arguments != ["nonsense"] else []), code=2)
    run("generate", "-p", "x", "--chain", "2", "--tree", "8/2/2", code=2)


def test_debug_shows_the_traceback(tiny_target: Path) -> None:
    """With --debug an error keeps its traceback for a bug report."""
    done = run("--debug", "generate", "--target", tiny_target, "--head", "none.gguf", "-p", "x", code=1)
    assert "Traceback" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_ctrl_c_ends_with_130(pair: list[str]) -> None:
    """An interrupt while text streams ends quietly with exit code 130."""
    long = ["--n-ctx", "16384", "-n", "16000", "--no-draft"]  # the text must not end before the signal comes
    command = [sys.executable, "-P", "-m", "eagle_edge", "generate", *pair, *long, "-p", "hello"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits a deaf one
    )
    assert process.stdout is not None
    process.stdout.read(1)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_the_package_imports_without_torch_or_converters() -> None:
    """``import eagle_edge`` loads nothing heavy, and the engine needs neither torch nor a converter."""
    code = (
        "import sys, eagle_edge; light = set(sys.modules); eagle_edge.Engine;"
        "heavy = {'torch', 'gguf', 'transformers', 'eagle_edge_convert'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert not {'numpy', 'llama_cpp'} & light"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)
