"""EAGLE speculative decoding for quantised GGUF models: the same text, sooner.

>>> from eagle_edge import Engine
>>> engine = Engine("model.gguf", "eagle3-head.gguf")
>>> print(engine.complete("Once upon a time").text)

Names are loaded when they are used, so that importing the package costs nothing and needs no model, torch or converter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import DraftParams, SamplingParams, TargetParams
    from .engine import Completion, Engine, Step
    from .stats import Stats
    from .target import Target
    from .template import ChatTemplate

__all__ = [
    "ChatTemplate",
    "Completion",
    "DraftParams",
    "Engine",
    "SamplingParams",
    "Stats",
    "Step",
    "Target",
    "TargetParams",
]

_HOMES = {
    "ChatTemplate": "template",
    "Completion": "engine",
    "DraftParams": "config",
    "Engine": "engine",
    "SamplingParams": "config",
    "Stats": "stats",
    "Step": "engine",
    "Target": "target",
    "TargetParams": "config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
