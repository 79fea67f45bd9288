"""``eagle-edge train``: what it asks of its options, and what it says when it cannot start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from eagle_edge.cli.train import train_command
from eagle_edge.errors import DependencyError, FileFormatError

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


def test_a_target_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """The file is named; nothing is generated."""
    pytest.importorskip("torch")
    result = CliRunner().invoke(app, ["--target", str(tmp_path / "no.gguf"), "-o", str(tmp_path / "run")])
    assert isinstance(result.exception, FileFormatError)
    assert "no.gguf" in str(result.exception)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command can be listed without the packages of training; running it says what to install."""
    for name in list(sys.modules):
        if name == "torch" or name.startswith(("torch.", "eagle_edge.train")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(app, ["--target", "a.gguf", "-o", str(tmp_path / "run")])
    assert isinstance(result.exception, DependencyError)
    assert "eagle-edge[train]" in str(result.exception)
