"""The file that keeps what was learnt."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_edge.state import load_state, save_state, state_file


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\x00\xff", '"text"'])
def test_a_broken_file_is_no_file(tmp_path: Path, content: str) -> None:
    """Whatever lies there, reading gives an empty state and no error."""
    path = tmp_path / "learnt.json"
    path.write_text(content, encoding="latin-1")
    assert load_state(path) == {}
    assert load_state(tmp_path / "missing.json") == {}
    assert load_state(tmp_path) == {}


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    """Where a file stands in the folder's place, saving does nothing."""
    (tmp_path / "file").write_text("")
    save_state(tmp_path / "file" / "learnt.json", {"a": 1})
    assert (tmp_path / "file").read_text() == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_file_depends_on_models_machine_and_settings(tmp_path: Path) -> None:
    """Another model, another size of the same name, or another setting is another file."""
    one, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    one.write_bytes(b"1")
    other.write_bytes(b"1")
    facts = {"kernels": "avx2"}
    paths = {
        state_file(facts, {"target": str(one), "head": None}, tmp_path),
        state_file(facts, {"target": str(other), "head": None}, tmp_path),
        state_file(facts, {"target": str(one), "head": str(other)}, tmp_path),
        state_file({"kernels": ""}, {"target": str(one), "head": None}, tmp_path),
    }
    assert len(paths) == 4
    assert state_file(facts, {"target": str(one), "head": None}, tmp_path) in paths
    one.write_bytes(b"22")
    assert state_file(facts, {"target": str(one), "head": None}, tmp_path) not in paths
