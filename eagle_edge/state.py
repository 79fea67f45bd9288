"""The file that keeps what was learnt between runs: one small JSON for each model, head and machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

__all__ = ["load_state", "save_state", "state_file"]


def state_file(facts: Mapping[str, Any], files: Mapping[str, str | None], folder: Path | None = None) -> Path:
    """Where what was learnt about these files on this machine is kept: one small JSON in the user's cache folder.

    Args:
        facts: what else the costs depend on: threads, kernels, cache types.
        files: model files by role; their names, sizes and times of change count.
        folder: another folder than the user's cache.
    """
    identity: dict[str, Any] = {"machine": [platform.node(), platform.machine(), os.cpu_count()], **facts}
    for role, path in files.items():
        found = None if path is None else os.stat(path)
        identity[role] = None if found is None else [os.path.basename(path or ""), found.st_size, found.st_mtime_ns]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    return (folder or Path(platformdirs.user_cache_dir("eagle-edge", appauthor=False))) / f"learnt-{digest}.json"


def load_state(path: Path) -> dict[str, Any]:
    """What ``save_state`` wrote there; empty where there is no such file or it is broken."""
    with contextlib.suppress(OSError, ValueError):
        state = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(state, dict):
            return state
    return {}


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the file in one step, so that no reader ever sees half of it; a folder we may not write to is left."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(state, file)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
