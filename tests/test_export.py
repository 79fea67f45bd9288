"""Heads back to checkpoints: what comes out is what went in, or is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

torch = pytest.importorskip("torch")
import checkpoints  # noqa: E402
import safetensors.torch  # noqa: E402
from checkpoints import layouts  # noqa: E402
from eagle_edge_convert import convert_head, export_head  # noqa: E402
from eagle_edge_convert.cli import main  # noqa: E402
from eagle_edge_convert.export_config import FORMATS, inexpressible  # noqa: E402

from eagle_edge.errors import PairError  # noqa: E402

SAFEAILAB = {"safeailab_eagle1", "safeailab_eagle1_llama3", "safeailab_eagle2_qwen2", "hass", "safeailab_eagle3"}
EXPRESSIBLE = {
    "safeailab": {
        *SAFEAILAB,
        "speculators_eagle1",
        "safeailab_eagle3_full_vocabulary",
        "angelslim",
    },
    "specforge": {
        "safeailab_eagle3",
        "safeailab_eagle3_wider_target",
        "safeailab_eagle3_full_vocabulary",
        "specforge",
        "specforge_eagle31",
        "specforge_llama3_rope",
        "angelslim",
        "modelopt",
        "nemo_automodel",
        "four_taps",
    },
    "speculators": {
        *layouts(),
    }
    - {"safeailab_eagle2_qwen2", "modelopt_without_taps", "sglang_eagle31"},
}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target") / "target.gguf", n_layer=checkpoints.N_LAYER)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", tuple(layouts()))
def test_a_round_trip_changes_nothing(name: str, format_: str, target: Path, tmp_path: Path) -> None:
    """GGUF to checkpoint to GGUF gives the same bytes wherever the format has words for the head, else an error."""
    first = convert_head(layouts()[name].write(tmp_path / "a"), target, tmp_path / "a.gguf", "f32", check=False)
    if name not in EXPRESSIBLE[format_]:
        with pytest.raises(ValueError, match=f"the {format_} format has no word for"):
            export_head(first.path, tmp_path / "b", format_, target)
        assert not list(tmp_path.glob("b/*"))
        return
    export_head(first.path, tmp_path / "b", format_, target)
    again = convert_head(tmp_path / "b", target, tmp_path / "b.gguf", "f32", check=False)
    assert first.config == dataclasses.replace(again.config, rms_eps=first.config.rms_eps)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_come_back_bit_for_bit(dtype: Any, target: Path, tmp_path: Path) -> None:
    """A SpecForge head that is converted without quantisation and exported has every bit of its matrices."""
    layout = layouts()["specforge_eagle31"]
    wide = {name: t.to(dtype) if t.ndim == 2 else t for name, t in layout.tensors.items()}
    folder = dataclasses.replace(layout, tensors=wide).write(tmp_path / "a")
    quantize = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    convert_head(folder, target, tmp_path / "a.gguf", quantize, check=False)
    export_head(tmp_path / "a.gguf", tmp_path / "b", "specforge")
    before = safetensors.torch.load_file(folder / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "b" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype, name
        assert torch.equal(tensor, after[name]), name
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert str(dtype) == f"torch.{config['torch_dtype']}"


def test_safeailab_files_load_in_torch(target: Path, tmp_path: Path) -> None:
    """pytorch_model.bin is a plain state dictionary under SafeAILab's names."""
    layout = layouts()["safeailab_eagle3"]
    convert_head(layout.write(tmp_path / "a"), target, tmp_path / "a.gguf", "f32", check=False)
    export_head(tmp_path / "a.gguf", tmp_path / "b", "safeailab", target)
    before = torch.load(tmp_path / "a" / "pytorch_model.bin", weights_only=True)
    after = torch.load(tmp_path / "b" / "pytorch_model.bin", weights_only=True)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_a_head_borrows_is_copied(target: Path, tmp_path: Path) -> None:
    """A head without an output matrix takes the target's rows along, and cannot be exported without them."""
    head = tiny.make_head(tmp_path / "head.gguf", own_output=False, taps=checkpoints.TAPS)
    with pytest.raises(PairError, match=r"borrows output\.weight from its target; give that with --target"):
        export_head(head, tmp_path / "a", "specforge")
    result = export_head(head, tmp_path / "a", "speculators", target)
    state = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")
    ids = state["d2t"].numpy() + np.arange(128)
    theirs = tiny.target_tensors(n_layer=checkpoints.N_LAYER)
    np.testing.assert_array_equal(theirs["output.weight"][ids], state["lm_head.weight"].numpy())
    np.testing.assert_array_equal(theirs["token_embd.weight"], state["embed_tokens.weight"].numpy())
    assert len(result.notes) == 2


def test_quantised_tensors_are_widened_and_named(target: Path, tmp_path: Path) -> None:
    """A quantised head exports as float16, and says so."""
    head = tiny.make_head(tmp_path / "head.gguf", quant="Q8_0", taps=checkpoints.TAPS)
    result = export_head(head, tmp_path / "a", "specforge")
    assert any("fc.weight is stored as Q8_0: widened" in note for note in result.notes)
    assert safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")["fc.weight"].dtype == torch.float16


def test_the_command(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``export`` prints what it wrote; an unknown format is one line."""
    head = tiny.make_head(tmp_path / "head.gguf", taps=checkpoints.TAPS)
    with pytest.raises(SystemExit) as done:
        main(["export", str(head), "--format", "specforge", "-o", str(tmp_path / "out"), "--json"])
    assert done.value.code == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(tmp_path / "out")
    with pytest.raises(SystemExit) as caught:
        main(["export", str(head), "--format", "onnx", "-o", str(tmp_path / "out")])
    assert caught.value.code == 1
    assert "format must be one of specforge, speculators, safeailab" in capsys.readouterr().err


def test_every_switch_is_either_expressed_or_refused() -> None:
    """No switch of a head is lost in silence: each format has a word for it or names it."""
    for flag in ("fc_norm", "norm_output", "norm_before_residual", "qk_norm"):
        config = dataclasses.replace(tiny.HEAD, taps=checkpoints.TAPS)
        object.__setattr__(config, flag, True)
        assert flag in inexpressible(config, "safeailab", checkpoints.N_LAYER)
