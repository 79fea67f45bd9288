"""A checkpoint folder as a configuration and tensors that are read when asked for.

It knows files, not heads. Numbers come back as float32, int64 or bool, whatever they were stored as.
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

__all__ = ["Checkpoint", "Tensor", "open_checkpoint"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint: ``shape`` as torch says it, ``read()`` gives its numbers."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Array]

    def read(self) -> Array:
        """The numbers: float32 [shape], or int64 or bool where they were stored as such."""
        data = self.load()
        if self.dtype == "bfloat16":
            return (data.astype(np.uint32) << 16).view(np.float32)
        if self.dtype in ("float16", "float32", "float64"):
            return data.astype(np.float32)
        return data.astype(np.bool_ if self.dtype == "bool" else np.int64)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with config.json and one file of tensors."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in ``folder``: config.json and model.safetensors or pytorch_model.bin.

    Raises:
        FileFormatError: a file is missing, broken, or holds anything but tensors.
    """
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: no such folder; give the folder that holds the checkpoint's config.json")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileFormatError(f"{path}: no such file; a checkpoint folder needs one") from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise FileFormatError(f"{path}: holds {type(config).__name__}, expected an object")
    return Checkpoint(folder, config, _open_tensors(folder))


def _open_tensors(folder: Path) -> dict[str, Tensor]:
    for name, module in (("model.safetensors", safetensors), ("pytorch_model.bin", pickled)):
        path = folder / name
        if path.is_file():
            entries = module.open_file(path)
            return {key: Tensor(entry.shape, entry.dtype, entry.load) for key, entry in entries.items()}
    raise FileFormatError(f"{folder}: holds neither model.safetensors nor pytorch_model.bin")
