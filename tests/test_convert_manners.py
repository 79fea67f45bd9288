"""What a converter leaves behind: whole files or nothing, conventional names, and metadata that says what it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

pytest.importorskip("torch")
import checkpoints
from checkpoints import layouts
from eagle_edge_convert import convert_head

from eagle_edge.gguf_header import read_header

WORKER = """
import resource, signal, sys
from eagle_edge_convert import convert_head
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits a deaf one
if sys.argv[4] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
def progress(done, total):
    if sys.argv[4] == "interrupt":
        signal.raise_signal(signal.SIGINT)
try:
    convert_head(*sys.argv[1:4], "f32", progress=progress, check=False)
except KeyboardInterrupt:
    sys.exit(130)
except OSError as error:
    sys.exit(f"one line: {error}")
"""


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target") / "target.gguf", n_layer=checkpoints.N_LAYER)


@pytest.mark.parametrize(("trouble", "code"), [("interrupt", 130), ("full", 1)])
def test_trouble_leaves_nothing(trouble: str, code: int, target: Path, tmp_path: Path) -> None:
    """An interrupt or a full disk ends without a file, and what was there before stays as it was."""
    checkpoint = layouts()["specforge"].write(tmp_path / "head")
    before = {path: path.read_bytes() for path in checkpoint.iterdir()}
    output = tmp_path / "out.gguf"
    output.write_text("an older file")
    arguments = [str(checkpoint), str(target), str(output), trouble]
    done = subprocess.run([sys.executable, "-c", WORKER, *arguments], capture_output=True, text=True, check=False)
    assert code == done.returncode, done.stderr
    assert ("one line" in done.stderr) == (trouble == "full")
    assert output.read_text() == "an older file"
    assert [output] == list(tmp_path.glob("out*"))
    assert before == {path: path.read_bytes() for path in checkpoint.iterdir()}


def test_a_folder_gets_a_conventional_name(target: Path, tmp_path: Path) -> None:
    """``-o FOLDER`` names the file after the target and the type, and the file says what it is."""
    result = convert_head(
        layouts()["specforge"].write(tmp_path / "head"),
        target,
        tmp_path,
        "q8_0",
        metadata={"general.license": "mit"},
        check=False,
    )
    assert result.path.name == "eagle3-target-Q8_0.gguf"
    header = read_header(result.path)
    said = {key: header.metadata[f"general.{key}"] for key in ("name", "base_model.0.name", "quantized_by", "license")}
    expected = {"name": "EAGLE-3 head for target", "base_model.0.name": "target", "quantized_by": "eagle-edge"}
    assert {**expected, "license": "mit"} == said


def test_progress_ends_with_all_bytes(target: Path, tmp_path: Path) -> None:
    """Bytes never go backwards, and the last report is the whole."""
    seen: list[tuple[int, int]] = []
    convert_head(
        layouts()["specforge"].write(tmp_path / "head"),
        target,
        tmp_path / "out.gguf",
        progress=lambda done, total: seen.append((done, total)),
        check=False,
    )
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 100_000


@pytest.mark.parametrize("place", ["target.gguf", "head/model.safetensors"])
def test_what_is_read_is_never_written(place: str, target: Path, tmp_path: Path) -> None:
    """An output that is the target, or one of the checkpoint's files, is refused before anything is touched."""
    copy = Path(shutil.copy(target, tmp_path / "target.gguf"))
    checkpoint = layouts()["specforge"].write(tmp_path / "head")
    before = {path: path.read_bytes() for path in (copy, *checkpoint.iterdir())}
    with pytest.raises(ValueError, match="would replace a file that is read"):
        convert_head(checkpoint, copy, tmp_path / place, check=False)
    assert before == {path: path.read_bytes() for path in (copy, *checkpoint.iterdir())}
