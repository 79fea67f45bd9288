"""Checkpoints to GGUF, checked before they are trusted."""
