"""Checkpoints to GGUF, checked before they are trusted."""

from __future__ import annotations

from .head import ConvertedHead, HeadOverrides, convert_head

__all__ = ["ConvertedHead", "HeadOverrides", "convert_head"]
