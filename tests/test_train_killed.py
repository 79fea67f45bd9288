"""Runs that are killed in every stage end with the head of a run that was not; an interrupt says how to go on."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
from test_train_run import prompts, tiny_run

from eagle_edge.train.params import EvaluationParams

__all__ = ["prompts"]
pytestmark = pytest.mark.native

STAGES = [("prompts", 1.0), ("answers", 0.5), ("vocabulary", 1.0), ("training", 0.4), ("export", 0.5)]
SCRIPT = Path(__file__).parent / "killed_run.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def run_once(params: Path, *mark: str) -> int:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(params), *mark], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode


def test_a_run_killed_in_every_stage_makes_the_same_head(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """The same command again and again, dead at prompts, answers, vocabulary, training, export: not a bit differs."""
    runs = {}
    for name in ("whole", "killed"):
        params = tiny_run(tiny_target, tmp_path / name, prompts)
        loop = dataclasses.replace(params.loop, report_steps=1, evaluate_steps=2, checkpoint_steps=2)
        params = dataclasses.replace(params, loop=loop, evaluation=EvaluationParams(n_prompts=1, max_tokens=4))
        params.save(tmp_path / f"{name}.json")
        runs[name] = tmp_path / f"{name}.json"
    for stage, done in STAGES:
        assert run_once(runs["killed"], stage, str(done)) == -signal.SIGKILL, f"{stage} was never reached"
    for path in runs.values():
        assert run_once(path) == 0
    for file in ("head/model.safetensors", "head-q8_0.gguf", "vocabulary.json"):
        whole, killed = ((tmp_path / name / file).read_bytes() for name in runs)
        assert whole == killed, file
    results = [json.loads((tmp_path / name / "figures.json").read_text()) for name in runs]
    assert results[0]["figures"] == results[1]["figures"]


def test_an_interrupt_says_how_to_go_on(tiny_target: Path, tmp_path: Path) -> None:
    """Ctrl-C while answers are written: one line that names the folder, exit code 130, no traceback."""
    prompts = tmp_path / "many.txt"  # more than are answered before the signal comes
    prompts.write_text("".join(f"say the word {i}\n" for i in range(4000)), encoding="utf-8")
    command = [sys.executable, "-m", "eagle_edge", "train", "--target", str(tiny_target), "-o", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*command, "--prompts", str(prompts), "--own-share", "0"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits a deaf one
    )
    while process.poll() is None and not (tmp_path / "run" / "prompts" / "00000.jsonl").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert f"goes on with the run in {tmp_path / 'run'}" in stderr.splitlines()[-1]
