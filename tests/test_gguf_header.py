"""The header reader: agrees with the gguf package on good files, and ends cleanly on every broken one."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_edge.errors import FileFormatError
from eagle_edge.ggml_types import GGML_TYPES
from eagle_edge.gguf_header import read_header


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_head(tmp_path_factory.mktemp("head") / "head.gguf", quant="Q8_0")


def test_agrees_with_the_gguf_package(head: Path) -> None:
    """Keys, values, and every tensor's name, shape, type and place are those the gguf package reads."""
    header, reader = read_header(head), gguf.GGUFReader(head)
    keys = {name for name in reader.fields if not name.startswith("GGUF.")}
    assert set(header.metadata) == keys
    for key in keys:
        expected, value = reader.fields[key].contents(), header.metadata[key]
        assert (list(value) if isinstance(expected, list) else value) == expected, key  # type: ignore[arg-type]
    assert len(header.tensors) == len(reader.tensors)
    for tensor in reader.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(int(n) for n in tensor.shape)
        assert (info.type, info.offset, info.n_bytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)


def test_types_agree_with_the_gguf_package() -> None:
    """Every type has the block size of the gguf package (which keeps an old size for Q8_1)."""
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":
            assert (GGML_TYPES[kind].name, GGML_TYPES[kind].block, GGML_TYPES[kind].size) == (kind.name, block, size)


def test_every_truncation_is_refused(head: Path, tmp_path: Path) -> None:
    """A file cut anywhere raises FileFormatError that names the file in one line."""
    data, cut = head.read_bytes(), tmp_path / "cut.gguf"
    last = max(t.offset + t.n_bytes for t in read_header(head).tensors.values())
    for length in [*range(0, 600, 7), *range(600, last, 997), last - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(FileFormatError, match=r"^[^\n]*cut\.gguf: [^\n]+$"):
            read_header(cut)


@given(place=st.integers(0, 9000), value=st.integers(0, 255), width=st.sampled_from([1, 4, 8]))
@settings(max_examples=400, deadline=None)
def test_mutations_never_escape(
    head: Path, tmp_path_factory: pytest.TempPathFactory, place: int, value: int, width: int
) -> None:
    """Any overwritten bytes of the header give a header or FileFormatError, at once and in little memory."""
    data = bytearray(head.read_bytes())
    data[place : place + width] = bytes([value]) * width
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(data)
    try:
        tensors = read_header(path).tensors.values()
    except FileFormatError as error:
        message = str(error)
    else:
        assert all(tensor.offset + tensor.n_bytes <= len(data) for tensor in tensors)
        return
    assert "mutated.gguf" in message
    assert "\n" not in message


def test_huge_counts_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    """Counts, lengths and shapes near 2^64 are compared with the file's size, not believed."""
    huge, path = 2**63, tmp_path / "huge.gguf"
    start = b"GGUF" + struct.pack("<I", 3)
    key = struct.pack("<Q", 1) + b"k"
    for body in (
        struct.pack("<QQ", huge, 0),
        struct.pack("<QQ", 0, huge),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IQ", 8, huge),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 4, huge),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 8, huge),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 9, huge),
        struct.pack("<QQ", 1, 0) + key + struct.pack("<IQQQQIQ", 4, huge, huge, huge, huge, 0, 0),
    ):
        path.write_bytes(start + body + bytes(64))
        with pytest.raises(FileFormatError):
            read_header(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "empty file"),
        (b"PK\x03\x04" + bytes(90), "not a GGUF"),
        (b"GGUF\x09" + bytes(90), "version 9"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, content: bytes | None, message: str) -> None:
    """A missing, empty, foreign or future file says which of these it is."""
    path = tmp_path / "other.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_header(path)


def test_folder_is_refused(tmp_path: Path) -> None:
    """A folder is not a file, and says so."""
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_header(tmp_path)


def test_typed_values(head: Path) -> None:
    """A key of another type, or a missing one, is an error that names the key."""
    header = read_header(head)
    assert header.get("eagle3.block_count", int) == 1
    assert header.get("eagle3.absent", int, 5) == 5
    assert header.integers("eagle3.target_layers") == (2, 3, 5)
    with pytest.raises(FileFormatError, match=r"eagle3\.absent is missing"):
        header.get("eagle3.absent", int)
    with pytest.raises(FileFormatError, match="should be str, not int"):
        header.get("eagle3.block_count", str)
    with pytest.raises(FileFormatError, match="array of integers"):
        header.integers("eagle3.block_count")
