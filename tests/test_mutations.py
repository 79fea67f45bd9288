"""Broken files: each loads or is refused in one line; none ends the process, none leaves a file behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import tiny

torch = pytest.importorskip("torch")
import checkpoints  # noqa: E402
import mutations  # noqa: E402
import safetensors.torch  # noqa: E402
from checkpoints import layouts  # noqa: E402

pytestmark = pytest.mark.native

COUNTS = {"head.gguf": 60, "target.gguf": 50, "safetensors": 30, "bin": 30, "config": 20, "model": 10}


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    tiny.make_target(folder / "target.gguf", n_layer=checkpoints.N_LAYER)
    tiny.make_head(folder / "head.gguf", taps=checkpoints.TAPS)
    saved = layouts()
    saved["safeailab_eagle3"].write(folder / "bin")
    layout = saved["specforge_eagle31"]
    layout.save = "shards"
    layout.write(folder / "shards")
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    model = {name: torch.ones(320, 8) for name in names}
    (folder / "model").mkdir()
    safetensors.torch.save_file(model, folder / "model" / "model.safetensors")
    (folder / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "vocab_size": 320}')
    return folder


@pytest.mark.parametrize("kind", COUNTS)
def test_a_broken_file_is_refused_in_one_line(kind: str, good: Path, tmp_path: Path) -> None:
    """Every case ends with a result or with a message, and the process lives to the last one."""
    cases = [(kind, seed) for seed in range(COUNTS[kind])]
    worker = [sys.executable, mutations.__file__, str(good), str(tmp_path / "scratch")]
    done = subprocess.run(worker, input=json.dumps(cases), capture_output=True, text=True, timeout=300, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}: {done.stderr[-2000:]}"
    ends = [line for line in lines if line.startswith("end ")]
    assert len(ends) == len(cases)
    outcomes = Counter("right" if line == "end right" else "refused" for line in ends)
    assert min(outcomes["refused"], outcomes["right"]) > 0, outcomes
