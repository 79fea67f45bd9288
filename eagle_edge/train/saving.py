"""Tensors on disk that a kill or a full disk cannot spoil."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import EagleEdgeError

__all__ = ["load_state", "save_state", "unfit"]


def save_state(state: Mapping[str, Any], path: Path) -> None:
    """Write ``state``; the old file stays until the new one is whole."""
    partial, buffer = path.with_suffix(".partial"), io.BytesIO()
    torch.save(dict(state), buffer)  # to a file it would hide that a disk is full
    with partial.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_state(path: Path, device: torch.device) -> dict[str, Any]:
    """What ``save_state`` wrote.

    Raises:
        EagleEdgeError: the file is something else, or broken.
    """
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location=device)
    except (RuntimeError, ValueError, OSError, EOFError, pickle.UnpicklingError) as error:
        raise unfit(path, error) from None
    return state


def unfit(path: Path, error: Exception) -> EagleEdgeError:
    """The error that says that a file of a run's state cannot be used."""
    reason = str(error).splitlines()[0]
    return EagleEdgeError(f"{path}: not a checkpoint of this run ({reason}); delete it to start anew")
