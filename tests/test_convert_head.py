"""Trained head to checkpoint to GGUF and back, and every way in which a checkpoint can be wrong."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")
import safetensors.torch  # noqa: E402
from eagle_edge_convert import HeadOverrides, head_proof  # noqa: E402
from eagle_edge_convert import convert_head as convert_and_check  # noqa: E402
from tiny import HEAD, N_VOCAB  # noqa: E402

from eagle_edge.errors import FileFormatError, PairError  # noqa: E402
from eagle_edge.gguf_header import read_header  # noqa: E402
from eagle_edge.head_format import HeadConfig, rope_row_order  # noqa: E402
from eagle_edge.train.export import export_checkpoint  # noqa: E402
from eagle_edge.train.model import Head  # noqa: E402
from eagle_edge.train.vocabulary import choose  # noqa: E402

convert_head = functools.partial(convert_and_check, check=False)

SWITCHES: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True, "norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"n_draft_vocab": N_VOCAB},
]


def trained(**switches: Any) -> tuple[Head, Any]:
    """A head with random weights and its vocabulary."""
    torch.manual_seed(1)
    config = dataclasses.replace(HEAD, **switches)
    vocabulary = choose(np.random.default_rng(2).random(N_VOCAB), config.n_draft_vocab)
    return Head(config, torch.randn(N_VOCAB, config.n_embd)), vocabulary


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    head, vocabulary = trained()
    export_checkpoint(head, vocabulary, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def stored(path: Path) -> dict[str, Any]:
    """Name to float32 or int64 array of every tensor in a GGUF."""
    reader = gguf.GGUFReader(str(path))
    return {
        tensor.name: tensor.data.copy()
        if tensor.name == "d2t"
        else gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in reader.tensors
    }


@pytest.mark.parametrize("switches", SWITCHES)
def test_export_convert_read_back(switches: dict[str, Any], tiny_target: Path, tmp_path: Path) -> None:
    """Configuration and weights arrive unchanged, but for the row order of q and k and absolute draft ids."""
    head, vocabulary = trained(**switches)
    export_checkpoint(head, vocabulary, tmp_path / "checkpoint")
    result = convert_head(tmp_path / "checkpoint", tiny_target, tmp_path / "head.gguf", "f32")
    assert head.config == result.config
    read = HeadConfig.from_metadata(read_header(tmp_path / "head.gguf"))
    assert head.config == dataclasses.replace(read, rms_eps=head.config.rms_eps)  # float32 in the file
    assert head.config.rms_eps == pytest.approx(read.rms_eps)
    assert not result.notes
    tensors, state = stored(tmp_path / "head.gguf"), head.state_dict()
    assert set(head.config.tensors()) | {"output.weight"} == set(tensors)
    if "d2t" in tensors:
        np.testing.assert_array_equal(vocabulary.ids, tensors["d2t"])
    np.testing.assert_array_equal(state["fc.weight"].numpy(), tensors["fc.weight"])
    np.testing.assert_array_equal(state["midlayer.hidden_norm.weight"].numpy(), tensors["blk.0.attn_norm_2.weight"])
    np.testing.assert_array_equal(state["lm_head.weight"].numpy(), tensors["output.weight"])
    q = state["midlayer.self_attn.q_proj.weight"].unflatten(0, (head.config.n_head, head.config.head_dim))
    order = rope_row_order(head.config.head_dim)
    np.testing.assert_array_equal(q[:, order].flatten(0, 1).numpy(), tensors["blk.0.attn_q.weight"])


@pytest.mark.parametrize(("quantize", "step"), [("f16", 2**-10), ("bf16", 2**-7), ("q8_0", 1 / 127), ("q4_0", 1 / 7)])
def test_quantized_matrices_stay_within_their_step(
    quantize: str, step: float, checkpoint: Path, tiny_target: Path
) -> None:
    """Matrices take the asked-for type, within its rounding; norms stay float32, what is kept finer is said."""
    output = checkpoint.parent / "head.gguf"
    made = convert_head(checkpoint, tiny_target, output, quantize)
    header = read_header(output)
    assert quantize.upper() == header.tensors["fc.weight"].type_name
    assert header.tensors["output_norm.weight"].type_name == "F32"
    wanted = safetensors.torch.load_file(checkpoint / "model.safetensors")["fc.weight"].numpy()
    assert np.abs(stored(output)["fc.weight"] - wanted).max() <= step * np.abs(wanted).max()
    finer = header.tensors["output.weight"].type_name
    assert finer == ("Q5_1" if quantize == "q4_0" else quantize.upper())
    assert (f"output.weight {finer}" in " ".join(made.notes)) == (quantize == "q4_0")


def test_the_tokenizer_is_the_targets(checkpoint: Path, tiny_target: Path) -> None:
    """Every tokenizer key is copied with its type and value."""
    output = checkpoint.parent / "head.gguf"
    convert_head(checkpoint, tiny_target, output)
    source, copy = gguf.GGUFReader(str(tiny_target)).fields, gguf.GGUFReader(str(output)).fields
    keys = [key for key in source if key.startswith("tokenizer.")]
    assert keys
    for key in keys:
        assert source[key].types == copy[key].types
        assert source[key].contents() == copy[key].contents()


def test_a_pickled_checkpoint_gives_the_same_file(checkpoint: Path, tiny_target: Path) -> None:
    """pytorch_model.bin and model.safetensors of one head convert to the same bytes."""
    convert_head(checkpoint, tiny_target, checkpoint.parent / "a.gguf")
    state = safetensors.torch.load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    torch.save(state, checkpoint / "pytorch_model.bin")
    convert_head(checkpoint, tiny_target, checkpoint.parent / "b.gguf")
    assert (checkpoint.parent / "a.gguf").read_bytes() == (checkpoint.parent / "b.gguf").read_bytes()


def test_a_pickle_that_names_anything_else_is_refused(checkpoint: Path, tiny_target: Path) -> None:
    """Code in a pickle is never run."""

    class Bad:
        def __reduce__(self) -> Any:
            return print, ("run",)

    (checkpoint / "model.safetensors").unlink()
    torch.save({"fc.weight": Bad()}, checkpoint / "pytorch_model.bin")
    with pytest.raises(FileFormatError, match="print"):
        convert_head(checkpoint, tiny_target, checkpoint.parent / "head.gguf")


def edit(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    state = safetensors.torch.load_file(checkpoint / "model.safetensors")
    change(state)
    safetensors.torch.save_file(state, checkpoint / "model.safetensors")


def nan(state: dict[str, Any]) -> None:
    state["fc.weight"][0, 0] = float("nan")


BROKEN: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda state: state.pop("norm.weight"), "missing for output_norm.weight"),
    (lambda state: state.update(surprise=torch.ones(2)), "surprise belongs to no known layout"),
    (lambda state: state.update(d2t=state["d2t"] + N_VOCAB), "d2t reaches"),
    (lambda state: state.update(d2t=-torch.arange(len(state["d2t"]))), "two draft tokens"),
    (lambda state: state.update(t2d=~state["t2d"]), "different tokens"),
    (lambda state: state.update({"norm.weight": torch.ones(3)}), "shape"),
    (nan, "NaN"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_broken_checkpoints_end_in_one_line_and_no_file(
    change: Callable[[dict[str, Any]], Any], message: str, checkpoint: Path, tiny_target: Path
) -> None:
    """What is missing, left over or impossible is named, and nothing is written."""
    edit(checkpoint, change)
    output = checkpoint.parent / "head.gguf"
    with pytest.raises(FileFormatError, match=message) as caught:
        convert_head(checkpoint, tiny_target, output)
    assert "\n" not in str(caught.value)
    assert not list(checkpoint.parent.glob("head.gguf*"))


def configure(checkpoint: Path, **keys: Any) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_layer_ids_are_read_as_their_writers_meant_them(checkpoint: Path, tiny_target: Path) -> None:
    """Top-level ids are boundaries, nested ids from 1 outputs, none means the defaults, and the user outranks all."""
    key, output = "eagle_aux_hidden_state_layer_ids", checkpoint.parent / "head.gguf"
    assert convert_head(checkpoint, tiny_target, output).config.taps == (2, 3, 5)
    configure(checkpoint, **{key: None, "eagle_config": {key: [1, 2, 4]}})
    nested = convert_head(checkpoint, tiny_target, output)
    assert (nested.config.taps, len(nested.notes)) == ((2, 3, 5), 1)
    configure(checkpoint, eagle_config=None)
    with pytest.raises(PairError, match=r"\[2, 3, 3\] are not distinct; .* --tap-layers"):
        convert_head(checkpoint, tiny_target, output)  # the target has six layers, too few for the default
    assert convert_head(checkpoint, tiny_target, output, overrides=HeadOverrides(taps=(1, 2, 6))).config.taps == (
        1,
        2,
        6,
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"num_attention_heads": 3}, "do not divide"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"norm_output": 1}, "norm_output"),
    ],
)
def test_mathematics_that_is_not_understood_is_refused(
    keys: dict[str, Any], message: str, checkpoint: Path, tiny_target: Path
) -> None:
    """A configuration that means something else than what would run is refused by name."""
    configure(checkpoint, **keys)
    with pytest.raises(FileFormatError, match=message):
        convert_head(checkpoint, tiny_target, checkpoint.parent / "head.gguf")


def test_a_head_for_another_target_is_refused(checkpoint: Path, tiny_target: Path) -> None:
    """Taps outside the target's layers cannot be read."""
    with pytest.raises(PairError, match=r"0\.\.6"):
        convert_head(checkpoint, tiny_target, checkpoint.parent / "h.gguf", overrides=HeadOverrides(taps=(2, 3, 7)))


def test_files_that_are_not_there_or_cut_off(checkpoint: Path, tiny_target: Path) -> None:
    """Each ends in one line that names the file."""
    output = checkpoint.parent / "head.gguf"
    with pytest.raises(FileFormatError, match="no such folder"):
        convert_head(checkpoint / "nothing", tiny_target, output)
    tensors = checkpoint / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="truncated"):
        convert_head(checkpoint, tiny_target, output)
    tensors.unlink()
    with pytest.raises(FileFormatError, match="neither"):
        convert_head(checkpoint, tiny_target, output)


def test_an_unknown_type_is_refused(checkpoint: Path, tiny_target: Path) -> None:
    """The message lists what there is."""
    with pytest.raises(ValueError, match="f32, f16"):
        convert_head(checkpoint, tiny_target, checkpoint.parent / "head.gguf", "q3")


def test_a_head_is_checked_before_it_is_kept(checkpoint: Path, tiny_target: Path) -> None:
    """The proof names what it compared and how often a random head guesses its target; it is the target's own text."""
    proof = convert_and_check(checkpoint, tiny_target, checkpoint.parent / "head.gguf", "f16").proof
    assert isinstance(proof, head_proof.HeadProof), proof
    assert proof.relative_error < 0.01
    assert proof.seems_to_fit is False
    assert "positions and 6 nodes against torch" in str(proof)


def test_a_head_for_a_folder_is_checked_on_random_features(checkpoint: Path, tiny_target: Path) -> None:
    """Without a target to run, features are random, and the proof says so."""
    output = checkpoint.parent / "head.gguf"
    convert_head(checkpoint, tiny_target, output, "f32")
    proof = head_proof.prove_head(checkpoint, checkpoint, output, "f32")  # any folder stands for one
    assert isinstance(proof, head_proof.HeadProof), proof
    assert proof.relative_error < 1e-4
    assert str(proof).endswith("on random features, for the target is no GGUF that could be run")


def test_a_head_that_computes_something_else_is_not_kept(
    checkpoint: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose logits are not the checkpoint's fails the check, in one line, and is not left behind."""
    other = checkpoint.parent / "other"
    shutil.copytree(checkpoint, other)
    edit(other, lambda state: state.update({"fc.weight": state["fc.weight"].flip(0)}))
    prove = head_proof.prove_head
    monkeypatch.setattr("eagle_edge_convert.head.prove_head", lambda _, *rest: prove(other, *rest))
    with pytest.raises(FileFormatError, match="computes something else, no file is kept: logits of") as caught:
        convert_and_check(checkpoint, tiny_target, checkpoint.parent / "head.gguf")
    assert "\n" not in str(caught.value)
    assert not list(checkpoint.parent.glob("head.gguf*"))
