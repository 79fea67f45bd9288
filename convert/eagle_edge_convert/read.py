"""A checkpoint folder as a configuration and tensors that are read when asked for.

It knows files, not heads. Numbers come back as float32, int64 or bool, whatever they were stored as, and a few rows at
a time where that is asked for, so that memory does not grow with the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.errors import FileFormatError

from . import pickled, safetensors

__all__ = ["Checkpoint", "Tensor", "open_checkpoint", "read_json"]

Array = npt.NDArray[Any]

# Whole files first, then the index of several; safetensors before pickles.
_LAYOUTS = (
    ("model.safetensors", "model.safetensors.index.json", safetensors.open_file),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", pickled.open_file),
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint: ``shape`` as torch says it, ``load()`` maps its bits, ``read()`` gives its numbers."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Array]

    def read(self) -> Array:
        """The numbers: float32 [shape], or int64 or bool where they were stored as such."""
        return self.decode(self.load())

    def decode(self, bits: Array) -> Array:
        """The numbers of some rows of what ``load`` gave."""
        if self.dtype == "bfloat16":
            return (bits.astype(np.uint32) << 16).view(np.float32)
        if self.is_float:
            return bits.astype(np.float32)
        return bits.astype(np.bool_ if self.dtype == "bool" else np.int64)

    @property
    def is_float(self) -> bool:
        """Whether it was stored as floating point."""
        return "float" in self.dtype


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with config.json and tensors in one file or several."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in ``folder``: config.json with model.safetensors or pytorch_model.bin, whole or in shards.

    Raises:
        FileFormatError: a file is missing, broken, or holds anything but tensors.
    """
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: no such folder; give the folder that holds the checkpoint's config.json")
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise FileFormatError(f"{folder}: holds an adapter only; merge it into its base model first")
    return Checkpoint(folder, read_json(folder / "config.json"), _open_tensors(folder))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
        FileFormatError: no such file, or something else is in it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileFormatError(f"{path}: no such file; a checkpoint folder needs one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: cannot be read as JSON: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: holds {type(value).__name__}, expected an object")
    return value


def _open_tensors(folder: Path) -> dict[str, Tensor]:
    for whole, index, open_file in _LAYOUTS:
        if (folder / whole).is_file():
            return {name: _tensor(entry) for name, entry in open_file(folder / whole).items()}
        if (folder / index).is_file():
            return _open_shards(folder, index, open_file)
    names = ", ".join(whole for whole, _, _ in _LAYOUTS)
    raise FileFormatError(f"{folder}: holds neither {names.replace(', ', ' nor ')}")


def _open_shards(
    folder: Path, index: str, open_file: Callable[[Path], dict[str, safetensors.Entry]]
) -> dict[str, Tensor]:
    """Every tensor of the files that the index names; both must agree on every name."""
    weight_map = read_json(folder / index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise FileFormatError(f"{folder / index}: has no weight_map of names and files; get it again")
    out: dict[str, Tensor] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file or file in (".", ".."):
            raise FileFormatError(f"{folder / index}: names the file {file!r}, which is not in its own folder")
        if not (folder / file).is_file():
            raise FileFormatError(f"{folder / file}: this shard is missing; download the checkpoint again")
        out.update({name: _tensor(entry) for name, entry in open_file(folder / file).items()})
    for name in sorted(set(weight_map) ^ set(out)):
        where = "its file" if name in weight_map else "the index"
        raise FileFormatError(f"{folder / index}: the tensor {name} is not in {where}; download the checkpoint again")
    return out


def _tensor(entry: safetensors.Entry) -> Tensor:
    return Tensor(entry.shape, entry.dtype, entry.load)
