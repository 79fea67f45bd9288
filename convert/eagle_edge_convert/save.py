"""Writes tensors as .safetensors or as pytorch_model.bin, one at a time where the format allows it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.errors import DependencyError

from .safetensors import DTYPES
from .write import Progress

__all__ = ["SavedTensor", "save_pickle", "save_safetensors"]


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor to save: ``dtype`` as safetensors spells it, ``load()`` gives its bits (bfloat16 as uint16)."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], npt.NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """What it takes in a file."""
        return int(math.prod(self.shape) * np.dtype(DTYPES[self.dtype][1]).itemsize)


def save_safetensors(path: Path, tensors: Mapping[str, SavedTensor], progress: Progress | None = None) -> int:
    """Write the file and return the bytes of its tensors.

    The format: https://github.com/huggingface/safetensors#format
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.n_bytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.items():
            values = np.ascontiguousarray(tensor.load())
            assert values.nbytes == tensor.n_bytes, (name, values.shape, values.dtype)
            file.write(values.tobytes())
            done += values.nbytes
            if progress is not None:
                progress(done, end)
    return end


def save_pickle(path: Path, tensors: Mapping[str, SavedTensor], progress: Progress | None = None) -> int:
    """Write the file with torch, which holds all tensors in memory; the bytes of its tensors.

    Raises:
        DependencyError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise DependencyError("writing pytorch_model.bin needs torch: pip install 'eagle-edge[convert]'") from None
    state = {}
    for name, tensor in tensors.items():
        values = torch.from_numpy(np.array(tensor.load()))
        state[name] = values.view(torch.bfloat16) if tensor.dtype == "BF16" else values
    torch.save(state, path)
    total = sum(tensor.n_bytes for tensor in tensors.values())
    if progress is not None:
        progress(total, total)
    return total
