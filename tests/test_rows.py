"""Tables of what n rows cost: their keys, the limit they are held to, and a folder of models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import make_target

from eagle_edge.cli.rows import bench_rows
from eagle_edge.kernels import choose_kernels
from eagle_edge.rows import Limits, measure_limits, measure_rows

pytestmark = pytest.mark.native


def test_every_choice_of_kernels_has_a_row_for_every_n(tiny_target: Path) -> None:
    """Rows name kernels, type, n and milliseconds; llama.cpp's come first."""
    rows = measure_rows(tiny_target, (1, 3), n_past=20, repeats=1, n_threads=1)
    kernels = ["llama.cpp", "native"] if choose_kernels("auto") else ["llama.cpp"]
    assert [(n, kind) for n in (1, 3) for kind in kernels] == [(row["n"], row["kernels"]) for row in rows]
    assert all(row["type"] == "F32" and row["ms"] > 0 for row in rows)


def test_a_limit_is_bytes_or_products_whichever_takes_longer(tmp_path: Path) -> None:
    """One row is bound by the bytes of the matrices, many rows by their products; the embedding is looked up only."""
    path = make_target(tmp_path / "target.gguf", quant="Q8_0", n_layer=1)
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128  # q and output, k and v, three of the feed-forward
    weights = layer + 320 * 64
    assert Limits(1e6, 1e12).ms(path, 1) == pytest.approx(weights * 34 / 32 / 1e6 * 1000)
    assert Limits(1e15, 1e6).ms(path, 8) == pytest.approx(8 * weights / 1e6 * 1000)
    assert Limits(1e15, 1e6).ms(path, 512) == pytest.approx(512 * layer / 1e6 * 1000)  # a prefill has no logits


def test_the_better_of_two_measurements_is_the_limit() -> None:
    """Each figure by itself: what others took away at one time, they may have left at the other."""
    assert Limits(2e9, 1e11).or_better(Limits(1e9, 3e11)) == Limits(2e9, 3e11)


def test_limits_are_measured(tiny_target: Path) -> None:
    """Reading memory takes time, and so do products where there are kernels."""
    limits = measure_limits(tiny_target, n_threads=1)
    assert 1e6 < limits.bytes_per_s < 1e13
    assert (limits.products_per_s > 1e8) == bool(choose_kernels("auto"))


@pytest.mark.parametrize("path", ["avx2", "avxvnni", "avx512vnni", "neon_dot", "neon_i8mm"])
def test_no_path_claims_more_products_than_a_core_can_do(path: str, tiny_target: Path) -> None:
    """Two instructions of 64 products a cycle at 7 GHz are 0.9 T a second: more means the compiler left some out."""
    code = f"from eagle_edge.rows import measure_limits; print(measure_limits({str(tiny_target)!r}, 1).products_per_s)"
    environment = {**os.environ, "EAGLE_EDGE_KERNEL_PATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    if float(done.stdout) == 0:
        pytest.skip(f"no {path} here")
    assert 1e8 < float(done.stdout) < 1e12


def test_limits_are_measured_before_and_after(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_target: Path
) -> None:
    """The table holds rows to the better of the two."""
    found = iter([Limits(1e9, 1e15), Limits(4e9, 1e15)])
    monkeypatch.setattr("eagle_edge.cli.rows.measure_limits", lambda *_: next(found))
    monkeypatch.setattr("eagle_edge.cli.rows.measure_rows", lambda *_, **__: [{"kernels": "native", "n": 1}])
    bench_rows(tiny_target, 1, with_limits=True, as_json=True)
    assert json.loads(capsys.readouterr().out)[0]["limit_ms"] == pytest.approx(
        Limits(4e9, 1e15).ms(tiny_target, 1), abs=1e-6
    )


def test_a_folder_of_models_is_one_list(tmp_path: Path) -> None:
    """The command measures every file of a folder, and says when there is none."""
    for quant in ("Q4_0", "Q8_0"):
        make_target(tmp_path / f"{quant}.gguf", quant=quant, n_layer=1)
    bench = [sys.executable, "-P", "-m", "eagle_edge", "bench", "--rows", "--threads", "1"]
    done = subprocess.run([*bench, str(tmp_path), "--limits", "--json"], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert {("Q4_0.gguf", "Q4_0"), ("Q8_0.gguf", "Q8_0")} == {(row["target"], row["type"]) for row in rows}
    assert all(row["limit_ms"] > 0 for row in rows)
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = subprocess.run([*bench, str(empty)], capture_output=True, text=True, check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
