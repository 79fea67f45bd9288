"""Checkpoints to GGUF, checked before they are trusted.

Names are loaded when they are used: the command line lists its commands without the packages that converting needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .head import ConvertedHead, HeadOverrides, convert_head

__all__ = ["ConvertedHead", "HeadOverrides", "convert_head"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import head

    return getattr(head, name)
