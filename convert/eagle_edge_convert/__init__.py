"""Checkpoints to GGUF, checked before they are trusted; and heads back to checkpoints.

Names are loaded when they are first used, so that a command line may list the converters without their packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .export import ExportedHead, export_head
    from .head import ConvertedHead, HeadOverrides, convert_head
    from .model import ConvertedModel, convert_target

__all__ = [
    "ConvertedHead",
    "ConvertedModel",
    "ExportedHead",
    "HeadOverrides",
    "convert_head",
    "convert_target",
    "export_head",
]

_HOMES = {
    "ExportedHead": "export",
    "export_head": "export",
    "ConvertedHead": "head",
    "HeadOverrides": "head",
    "convert_head": "head",
    "ConvertedModel": "model",
    "convert_target": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
