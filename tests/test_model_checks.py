"""What is wrong with a model's checkpoint is said in one line, and leaves no file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import hf_models  # noqa: E402
import safetensors.torch  # noqa: E402
from eagle_edge_convert import convert_target  # noqa: E402
from eagle_edge_convert.cli import main  # noqa: E402
from eagle_edge_convert.model_checks import check_model  # noqa: E402

from eagle_edge.errors import FileFormatError  # noqa: E402

Change = Callable[[Path], object]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_models.save_model(tmp_path_factory.mktemp("llama"), "llama", num_hidden_layers=1)


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def configure(file: str = "config.json", **keys: Any) -> Change:
    def change(folder: Path) -> None:
        values = json.loads((folder / file).read_text()) | keys
        (folder / file).write_text(json.dumps(values))

    return change


def edit(change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(folder: Path) -> None:
        state = safetensors.torch.load_file(folder / "model.safetensors")
        change(state)
        safetensors.torch.save_file(state, folder / "model.safetensors")

    return apply


def adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def shards(folder: Path) -> None:
    state = safetensors.torch.load_file(folder / "model.safetensors")
    names = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(state)}
    for file in set(names.values()):
        safetensors.torch.save_file({name: state[name] for name in state if names[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "model.safetensors").unlink()


def missing_shard(folder: Path) -> None:
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def outside(folder: Path) -> None:
    shards(folder)
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00002", "../model-00002"))


def bits(state: dict[str, Any]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    state[name] = torch.zeros(128, 32, dtype=torch.uint8)
    state[f"{name}.absmax"] = torch.ones(128)


BROKEN: dict[str, tuple[Change, str]] = {
    "adapter": (adapter, "holds an adapter only"),
    "adapter beside a model": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter"),
    "bitsandbytes": (configure(quantization_config={"quant_method": "bitsandbytes"}), r"quantised \(bitsandbytes\)"),
    "gptq": (configure(quantization_config={"quant_method": "gptq", "bits": 4}), r"quantised \(gptq\)"),
    "fp8": (configure(quantization_config={"quant_method": "fp8"}), r"quantised \(fp8\)"),
    "uint8 with absmax": (edit(bits), "up_proj.weight.* is of a quantised model"),
    "missing shard": (missing_shard, "model-00002-of-00002.safetensors: this shard is missing"),
    "a shard elsewhere": (outside, "not in its own folder"),
    "vocabulary size": (configure(vocab_size=300), "300 tokens, the embedding has 320 rows"),
    "small embedding": (
        lambda folder: (
            configure(vocab_size=310)(folder),
            edit(lambda s: s.update({k: v[:310].clone() for k, v in s.items() if len(v) == 320}))(folder),
        ),
        "the tokenizer has 320 tokens, the embedding 310",
    ),
    "code in config": (configure(auto_map={"AutoModel": "x.Y"}), "auto_map.*--trust-remote-code"),
    "code in tokenizer": (
        configure("tokenizer_config.json", auto_map={"A": "x.Y"}),
        "tokenizer_config.json asks to run",
    ),
    "a draft head": (edit(lambda state: state.update({"fc.weight": torch.ones(2, 2)})), "use: eagle-edge convert head"),
    "no architecture": (configure(architectures=[]), "names no architecture"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_checkpoint_is_refused_before_anything_runs(name: str, model: Path) -> None:
    """One line: which file, what is wrong, what to do."""
    change, message = BROKEN[name]
    change(model)
    with pytest.raises(FileFormatError, match=message) as caught:
        check_model(model)
    assert "\n" not in str(caught.value)


def test_shards_are_as_good_as_one_file(model: Path) -> None:
    """A model in two files has the facts of the same model in one."""
    whole = check_model(model)
    shards(model)
    assert whole == check_model(model)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            configure(architectures=["InventedForCausalLM"]),
            [],
            "InventedForCausalLM is an architecture that llama.cpp cannot",
        ),
        (
            lambda folder: None,
            [],
            "pre-tokenizer is not one that llama.cpp knows; name the right one with --pre-tokenizer",
        ),
        (adapter, [], "adapter"),
        (lambda folder: None, ["--quantize", "q9"], "quantize must be one of"),
        (lambda folder: None, ["--quantize", "iq2_xxs"], "needs an importance matrix"),
    ],
)
def test_the_command_ends_in_one_line(
    change: Change, arguments: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the reason on stderr, no file and no half file."""
    change(model)
    with pytest.raises(SystemExit) as caught:
        main(["target", str(model), "-o", str(model.parent / "out.gguf"), *arguments])
    assert caught.value.code == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in last
    assert not list(model.parent.glob("out.gguf*"))


def test_full_disk_is_said_before_the_work(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the file and its intermediate is checked first."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(OSError, match="GB are free, converting takes"):
        convert_target(model, model.parent / "out.gguf", "q8_0")
