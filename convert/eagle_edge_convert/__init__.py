<<<<<<< HEAD
"""Checkpoints to GGUF, checked before they are trusted.

Names are loaded when they are used: the command line lists its commands without the packages that converting needs.
=======
"""Checkpoints to GGUF, checked before they are trusted; and heads back to checkpoints.

Names are loaded when they are first used, so that a command line may list the converters without their packages.
>>>>>>> convert
"""

from __future__ import annotations

<<<<<<< HEAD
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .head import ConvertedHead, HeadOverrides, convert_head

__all__ = ["ConvertedHead", "HeadOverrides", "convert_head"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import head

    return getattr(head, name)
=======
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
>>>>>>> convert
