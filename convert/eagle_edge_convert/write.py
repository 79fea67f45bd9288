"""Writes a head as GGUF: metadata, the target's tokenizer, tensors a few rows at a time; complete or not at all."""

from __future__ import annotations

import os
import shutil
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle_edge.gguf_header import read_header
from eagle_edge.head_format import HeadConfig

from .encode import Kind, encode_rows, n_encoded_bytes
from .value_types import read_value_types

__all__ = ["OutTensor", "Progress", "check_output", "check_room", "copy_tokenizer", "replacing", "write_head"]

Progress = Callable[[int, int], None]  # bytes written, bytes in all
MAX_WAITING = 2 * (os.cpu_count() or 1)  # chunks in memory


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to write: ``shape`` in torch's order, ``chunks()`` gives its rows as float32 or int64 in order."""

    shape: tuple[int, ...]
    kind: Kind
    chunks: Callable[[], Iterator[npt.NDArray[Any]]]

    @property
    def n_bytes(self) -> int:
        """What it takes in the file, padding aside."""
        return n_encoded_bytes(self.shape, self.kind)


def check_output(path: Path, *inputs: Path) -> None:
    """Pass when writing ``path`` replaces no input: none of these files, nor a file in one of these folders.

    Raises:
        ValueError: it would.
    """
    for source in inputs:
        place = path.resolve()
        in_folder = place.parent == source.resolve() and place.exists() and place.suffix != ".gguf"
        if place == source.resolve() or in_folder:
            raise ValueError(f"{path}: the output would replace a file that is read; give another with -o")


def check_room(path: Path, n_bytes: int) -> None:
    """Pass when ``n_bytes`` more fit beside ``path``; its folder is made.

    Raises:
        OSError: they do not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < n_bytes:
        raise OSError(
            f"{path.parent}: {free / 1e9:.2f} GB are free, converting takes {n_bytes / 1e9:.2f} GB on the way"
        )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; on success its file is forced to the disk and takes the place of ``path``, else it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_head(
    path: Path,
    config: HeadConfig,
    tensors: Mapping[str, OutTensor],
    tokenizer_file: Path,
    file_type: gguf.LlamaFileType,
    general: Mapping[str, str],
    progress: Progress | None = None,
) -> int:
    """Write the head and return the file's size in bytes; ``replacing`` gives a path that may stay half written."""
    writer = gguf.GGUFWriter(None, config.architecture)
    _add_metadata(writer, config, general, file_type)
    copy_tokenizer(writer, tokenizer_file)
    for name, tensor in tensors.items():
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, tensor.kind)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
    with path.open("ab") as file:
        _write_data(file, tensors, writer.data_alignment, progress)
    return path.stat().st_size


def _write_data(file: IO[bytes], tensors: Mapping[str, OutTensor], alignment: int, progress: Progress | None) -> None:
    total, done, told = sum(tensor.n_bytes for tensor in tensors.values()), 0, 0.0
    _pad(file, alignment)
    with ThreadPoolExecutor() as pool:
        for name, tensor in tensors.items():
            for data in _encoded(pool, name, tensor):
                done += file.write(data)
                if progress is not None and time.monotonic() - told > 0.1:
                    told = time.monotonic()
                    progress(done, total)
            _pad(file, alignment)
    assert done == total, (done, total)
    if progress is not None:
        progress(total, total)


def _encoded(pool: ThreadPoolExecutor, name: str, tensor: OutTensor) -> Iterator[bytes | memoryview]:
    """The bytes of the chunks in order, a few of them in work at a time; the quantiser leaves the interpreter free."""
    waiting: deque[Future[bytes | memoryview]] = deque()
    for chunk in tensor.chunks():
        waiting.append(pool.submit(encode_rows, chunk, tensor.kind, f"the tensor {name}"))
        if len(waiting) > MAX_WAITING:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _pad(file: IO[bytes], alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _add_metadata(
    writer: gguf.GGUFWriter, config: HeadConfig, general: Mapping[str, str], file_type: gguf.LlamaFileType
) -> None:
    writer.add_type("model")
    writer.add_file_type(int(file_type))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_base_model_count(1)
    for key, text in general.items():
        writer.add_string(key, text)
    for key, value in config.to_metadata().items():
        if key == "general.architecture":
            continue  # the writer's constructor adds it
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def copy_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    """Every ``tokenizer.*`` key of ``source``, with its type."""
    values, types = read_header(source).metadata, read_value_types(source)
    for key, value in values.items():
        if key.startswith("tokenizer."):
            kind, element = types[key]
            plain: Any = value.tolist() if isinstance(value, array) else value
            if element is gguf.GGUFValueType.BOOL:
                plain = [bool(part) for part in plain]
            elif element is gguf.GGUFValueType.STRING:  # not every token of every model is UTF-8
                plain = [part.encode("utf-8", "surrogateescape") for part in plain]
            writer.add_key_value(key, plain, kind, sub_type=element)
