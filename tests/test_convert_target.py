"""Models of many architectures: saved by transformers, converted, checked, quantised, and drafted for."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny

pytest.importorskip("torch")
pytest.importorskip("transformers")
import checkpoints
import hf_models
from eagle_edge_convert import convert_head, convert_target, model
from eagle_edge_convert.proof import TEXT, Proof
from eagle_edge_convert.quantize import quantise
from eagle_edge_convert.reference import run_reference

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.engine import Engine
from eagle_edge.equality import compare
from eagle_edge.errors import FileFormatError
from eagle_edge.gguf_header import read_header
from eagle_edge.pair import pair_differences

pytestmark = pytest.mark.native

PROMPT = "the river had risen in the night"


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_models.save_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def llama_file(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("converted") / "model.gguf"
    return convert_target(llama, file, "f32", pre_tokenizer="gpt-2", check=False).path


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 wide, so that blocks of 256 fit; the MLP's 128 makes them fall back."""
    return hf_models.save_model(tmp_path_factory.mktemp("wide"), "llama", hidden_size=256, num_hidden_layers=2)


@pytest.mark.parametrize("architecture", hf_models.ARCHITECTURES)
def test_an_architecture_converts_and_is_drafted_for(architecture: str, tmp_path: Path) -> None:
    """The converted model has its source's logits, and a random head on it changes nothing but the speed."""
    folder = hf_models.save_model(tmp_path / "model", architecture)
    result = convert_target(folder, tmp_path / "model.gguf", "f32", pre_tokenizer="gpt-2")
    assert isinstance(result.proof, Proof), result.proof
    assert result.proof.top1_agreement == 1
    assert result.proof.same_tokens
    head = tiny.make_head(tmp_path / "head.gguf", taps=(2, 4, 5))
    engine = Engine(result.path, head, TargetParams(n_ctx=512, n_threads=1), draft_params=DraftParams(12, 3, 3))
    ids = engine.target.tokenize(PROMPT)
    n, mismatch = compare(engine, ("prompt", 0), ids, SamplingParams(max_tokens=60, ignore_eos=True))
    assert (n, mismatch) == (60, None)


@pytest.mark.parametrize(("architecture", "kind", "start"), [("llama", "Llama", " "), ("gemma3", "Gemma", "")])
def test_a_sentencepiece_tokenizer_converts(architecture: str, kind: str, start: str, tmp_path: Path) -> None:
    """A real sentencepiece model becomes llama.cpp's own kind: the same tokens, bytes for what it has not seen."""
    pytest.importorskip("sentencepiece")
    folder = hf_models.save_model(tmp_path / "model", architecture)
    hf_models.save_sentencepiece(folder, TEXT + "The river and the bridge and the village in the night. " * 4, kind)
    result = convert_target(folder, tmp_path / "model.gguf", "f32")
    assert isinstance(result.proof, Proof), result.proof
    assert result.proof.same_tokens
    assert read_header(result.path).get("tokenizer.ggml.model", str) == "llama"
    with Engine(result.path, None, TargetParams(n_ctx=64, n_threads=1)) as engine:
        ids = engine.target.tokenize("the bridge, é")
        assert ids[0] == engine.target.bos == 1
        assert b"".join(engine.target.piece(token) for token in ids).decode() == f"{start}the bridge, é"


def test_an_output_matrix_of_its_own(tmp_path: Path) -> None:
    """A tied model gets one and still computes the same; what both cost is measured, and a model with one is let be."""
    folder = hf_models.save_model(tmp_path / "model", "llama", tie_word_embeddings=True)
    with pytest.raises(ValueError, match=r"--untie-output must be one of f32, .*, got 'q4'"):
        convert_target(folder, tmp_path / "tied.gguf", untie="q4")
    tied = convert_target(folder, tmp_path / "tied.gguf", "f32", pre_tokenizer="gpt-2", check=False, for_draft=True)
    assert "output.weight" not in read_header(tied.path).tensors
    assert isinstance(tied.cost, tuple), tied.cost
    assert tied.cost[-1].kernels == ""  # llama.cpp's run everywhere
    for cost in tied.cost:
        assert cost.untied_ms is not None
        assert min(*cost.ms.values(), *cost.untied_ms.values()) > 0
        assert ("--untie-output" in str(cost)) == (cost.saved[0] >= 0.05)
    assert [folder, tied.path] == sorted(tmp_path.iterdir())
    own = convert_target(folder, tmp_path / "own.gguf", "f32", pre_tokenizer="gpt-2", untie="q8_0", for_draft=True)
    assert isinstance(own.proof, Proof), own.proof
    assert read_header(own.path).tensors["output.weight"].type_name == "Q8_0"
    assert isinstance(own.cost, tuple), own.cost
    assert all(cost.untied_ms is None for cost in own.cost)
    assert read_header(own.path).metadata == read_header(tied.path).metadata


# Four bits move the logits of random weights by half their size; the packaged model's round trip proves q4_k_m.
@pytest.mark.parametrize("quantize", ["bf16", "q8_0", "q6_k"])
def test_a_quantised_model_stays_close(quantize: str, wide: Path, tmp_path: Path) -> None:
    """The type asked for is what is stored, the logits stay within its tolerance, and what falls back is listed."""
    told: list[str] = []
    result = convert_target(
        wide, tmp_path / "out.gguf", quantize, pre_tokenizer="gpt-2", n_threads=1, announce=told.append
    )
    assert isinstance(result.proof, Proof), result.proof
    header = read_header(result.path)
    kinds = {info.type_name for info in header.tensors.values()}
    assert quantize.upper().removesuffix("_M") in kinds
    assert header.get("general.quantized_by", str) == "eagle-edge"
    assert "million parameters" in told[0]
    assert [tmp_path / "out.gguf"] == list(tmp_path.glob("out*"))


def test_an_importance_matrix_is_used_in_both_forms(llama: Path, llama_file: Path, tmp_path: Path) -> None:
    """GGUF and the older binary give the same file, which is another than without one."""
    values = {f"blk.{layer}.ffn_down.weight": np.linspace(0.01, 30, 128, dtype=np.float32) ** 2 for layer in range(8)}
    writer = gguf.GGUFWriter(str(tmp_path / "new.gguf"), "imatrix")
    old = struct.pack("<i", len(values))
    for name, numbers in values.items():
        writer.add_tensor(f"{name}.in_sum2", (numbers * 4)[None])
        writer.add_tensor(f"{name}.counts", np.array([[4]], np.float32))
        old += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 4, 128) + (numbers * 4).tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "old.dat").write_bytes(old)
    files = []
    for file in (None, "new.gguf", "old.dat"):
        imatrix = None if file is None else tmp_path / file
        out = tmp_path / "out.gguf"
        quantise(llama_file, out, "q4_0", imatrix)
        files.append(
            next(t.data.tobytes() for t in gguf.GGUFReader(str(out)).tensors if t.name == "blk.3.ffn_down.weight")
        )
    assert files[1] == files[2]
    assert files[0] != files[1]
    (tmp_path / "bad.dat").write_bytes(old[:-3])
    with pytest.raises(FileFormatError, match=r"bad\.dat: not an importance matrix, or truncated"):
        convert_target(llama, tmp_path / "x.gguf", "q4_0", imatrix=tmp_path / "bad.dat", pre_tokenizer="gpt-2")
    assert not list(tmp_path.glob("x.gguf*"))


def test_a_model_that_computes_something_else_is_not_kept(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion whose logits are not the source's fails the check and leaves no file."""
    other = hf_models.save_model(tmp_path / "other", "llama", seed=5)
    run = run_reference
    monkeypatch.setattr(model, "run_reference", lambda source, *rest, **more: run(other, *rest, **more))
    with pytest.raises(FileFormatError, match=r"computes something else: logits of .* relative error"):
        convert_target(llama, tmp_path / "out.gguf", "f16", pre_tokenizer="gpt-2")
    assert not list(tmp_path.glob("out*"))


def test_a_head_converts_for_a_hugging_face_folder(llama: Path, llama_file: Path, tmp_path: Path) -> None:
    """Tokenizer and sizes come from the folder; the file is the one that the target's GGUF gives, names aside."""
    layout = checkpoints.layouts()["specforge"]
    checkpoint = layout.write(tmp_path / "head")
    a = convert_head(checkpoint, llama, tmp_path / "a.gguf", pre_tokenizer="gpt-2", check=False)
    b = convert_head(checkpoint, llama_file, tmp_path / "b.gguf", check=False)
    assert a.config == b.config
    one, two = read_header(a.path), read_header(b.path)
    assert one.tensors.keys() == two.tensors.keys()
    assert one.strings("tokenizer.ggml.tokens") == two.strings("tokenizer.ggml.tokens")
    assert pair_differences(one, read_header(llama_file)) == []


@pytest.mark.parametrize("add_bos", [True, False])
def test_chat_template_and_bos_survive(add_bos: bool, llama: Path, tmp_path: Path) -> None:
    """A template that lies in a .jinja file alone is found, and whether BOS is added stays as the tokenizer says."""
    folder = Path(shutil.copytree(llama, tmp_path / "model"))
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    (folder / "chat_template.jinja").write_text(values.pop("chat_template"))
    path.write_text(json.dumps({**values, "add_bos_token": add_bos}))
    result = convert_target(folder, tmp_path / "out.gguf", "f16", pre_tokenizer="gpt-2", check=False)
    header = read_header(result.path)
    assert header.get("tokenizer.chat_template", str) == tiny.CHAT_TEMPLATE
    assert add_bos == header.get("tokenizer.ggml.add_bos_token", bool, False)
    engine = Engine(result.path, None, TargetParams(n_ctx=64, n_threads=1))
    ids = engine.target.tokenize("<|im_start|>user", parse_special=False)
    assert ids[1:].count(1) == 0  # user text stays text
    assert (ids[0] == 1) == add_bos
