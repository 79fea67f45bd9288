"""``eagle-edge train``: what it asks of its options, and what it says when it cannot start."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from eagle_edge.cli.train import train_command
from eagle_edge.cli.train_options import AnswerOptions
from eagle_edge.cli.train_progress import TrainProgress
from eagle_edge.errors import DependencyError, FileFormatError
from eagle_edge.train.watching import Acceptance, Report

app = typer.Typer()
app.command()(train_command)


@pytest.mark.parametrize("budget", ["soon", "0m", "3d", "-1s"])
def test_a_budget_is_a_time(budget: str, tmp_path: Path) -> None:
    """Anything else is a usage error that gives examples."""
    pytest.importorskip("torch")
    result = CliRunner().invoke(app, ["--target", "a.gguf", "-o", str(tmp_path / "run"), f"--budget={budget}"])
    assert result.exit_code == 2
    assert "30m" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--recipe", "eagle2"], "eagle3.1"),
        (["--tap-layers", "2,x"], "numbers"),
        (["--recipe", "eagle1", "--tap-layers", "3"], "final norm"),
        (["--temperatures", "0,hot"], "0,0.8"),
        (["--temperatures", "0,-1"], "0,0.8"),
        (["--temperatures", "nan"], "0,0.8"),
        (["--recipe", "eagle1", "--same-noise"], "EAGLE-3"),
        (["--recipe", "eagle1", "--draft-vocab", "64"], "every token"),
    ],
)
def test_a_recipe_that_cannot_be_is_said_before_anything_is_done(options: list[str], said: str, tmp_path: Path) -> None:
    """The message names what is possible, and no folder appears."""
    pytest.importorskip("torch")
    result = CliRunner().invoke(app, ["--target", "a.gguf", "-o", str(tmp_path / "run"), *options])
    assert result.exit_code != 0
    assert said in result.stderr + str(result.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "greedy_share", "temperatures"),
    [("1", 0, (1.0,)), ("0", 1, (1.0,)), ("0,0,0.5,1", 0.5, (0.5, 1.0)), ("0.7,0", 0.5, (0.7,))],
)
def test_temperatures_have_equal_shares(text: str, greedy_share: float, temperatures: tuple[float, ...]) -> None:
    """Zeros are the greedy share, the others are drawn from; without the option nothing is set."""
    shares = AnswerOptions(temperatures=text).shares()
    assert shares == {"greedy_share": greedy_share, "temperatures": temperatures}
    assert AnswerOptions().shares() == {}


def test_temperatures_and_noise_reach_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the options ask for is what the run is told; without them it is the usual mixture."""
    run, told = pytest.importorskip("eagle_edge.train.run"), []
    monkeypatch.setattr(run, "train", lambda params, progress, started: told.append(params))
    options = ["--target", "a.gguf", "-o", str(tmp_path / "run")]
    CliRunner().invoke(app, options)
    CliRunner().invoke(app, [*options, "--temperatures", "0,0.8", "--same-noise"])
    usual, asked = told
    assert (asked.data.greedy_share, asked.data.temperatures, asked.loop.same_noise) == (0.5, (0.8,), True)
    usually = (usual.data.greedy_share, usual.data.temperatures, usual.loop.same_noise)
    assert usually == (0.65, (0.6, 0.8, 1.0, 1.0), False)


def test_a_target_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """The file is named; nothing is generated."""
    pytest.importorskip("torch")
    result = CliRunner().invoke(app, ["--target", str(tmp_path / "no.gguf"), "-o", str(tmp_path / "run")])
    assert isinstance(result.exception, FileFormatError)
    assert "no.gguf" in str(result.exception)


def test_questions_that_are_not_there_are_said_before_anything_is_done(tmp_path: Path) -> None:
    """A folder that does not exist is a usage error, a set that it does not hold one line; no run is begun."""
    pytest.importorskip("torch")
    options = ["--target", str(tmp_path / "no.gguf"), "-o", str(tmp_path / "run"), "--questions"]
    assert CliRunner().invoke(app, [*options, str(tmp_path / "nothing")]).exit_code == 2
    (tmp_path / "one.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    result = CliRunner().invoke(app, [*options, str(tmp_path), "--sets", "one,two"])
    assert isinstance(result.exception, FileFormatError)
    assert "no set 'two'" in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_a_head_to_start_from_brings_its_shape(tmp_path: Path) -> None:
    """Options that would ask for another one are a usage error."""
    pytest.importorskip("torch")
    options = ["--target", "a.gguf", "-o", str(tmp_path / "run"), "--start-from", "head.gguf", "--tap-layers", "1"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 2
    assert "leave out" in result.stderr


def test_progress_without_a_terminal_is_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last line of a stage come at once, those between at intervals, with what is left of it."""
    now = [0.0]
    monkeypatch.setattr("eagle_edge.cli.train_progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    with TrainProgress(stream) as progress:
        for at, done in [(0.0, 0.0), (5.0, 0.1), (20.0, 0.25), (25.0, 0.3), (80.0, 1.0)]:
            now[0] = at
            progress.stage("answers", done, f"{done}")
        acceptance = Acceptance((0.5, 0.25), (0.9, 0.8))
        progress.report(Report(10, 4000, 2.0, 3.5, 0.5, acceptance))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1].strip(",%") for line in lines] == ["0", "25", "100", "50"]
    assert "60 s left" in lines[1]
    assert "2000 tokens/s  loss 3.500  acceptance by depth 0.50 0.25" in lines[3]


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command can be listed without the packages of training; running it says what to install."""
    for name in list(sys.modules):
        if name == "torch" or name.startswith(("torch.", "eagle_edge.train")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(app, ["--target", "a.gguf", "-o", str(tmp_path / "run")])
    assert isinstance(result.exception, DependencyError)
    assert "eagle-edge[train]" in str(result.exception)
