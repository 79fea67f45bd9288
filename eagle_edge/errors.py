"""Every error eagle-edge raises on purpose.

    EagleEdgeError
    +-- FileFormatError     a file is missing, truncated, of another kind, or holds impossible values
    +-- PairError           this head does not fit this target, or this target cannot be drafted for
    +-- ContextFullError    the prompt does not fit into the context
    +-- NoTokenLeftError    filters or grammar left no token to choose
    +-- GrammarError        a grammar or JSON schema cannot be compiled
    +-- TemplateError       a chat template cannot be compiled, fails, or refuses the messages
    +-- DependencyError     an optional package is not installed
    +-- NativeError         llama.cpp or ggml refused; the text is theirs

Wrong arguments are ValueError or TypeError, raised before any native call.
"""

from __future__ import annotations

__all__ = [
    "ContextFullError",
    "DependencyError",
    "EagleEdgeError",
    "FileFormatError",
    "GrammarError",
    "NativeError",
    "NoTokenLeftError",
    "PairError",
    "TemplateError",
]


class EagleEdgeError(Exception):
    """The base of all errors here; never raised itself."""


class FileFormatError(EagleEdgeError):
    """A file is missing, truncated, of another kind, or holds impossible values."""


class PairError(EagleEdgeError):
    """A head and a target do not fit together, or the target cannot be drafted for."""


class ContextFullError(EagleEdgeError):
    """The prompt needs more positions than the context has."""


class NoTokenLeftError(EagleEdgeError):
    """Filters, bias or grammar left no token to choose from."""


class GrammarError(EagleEdgeError):
    """A grammar or JSON schema cannot be compiled."""


class TemplateError(EagleEdgeError):
    """A chat template cannot be compiled, fails, or refuses the messages."""


class DependencyError(EagleEdgeError):
    """An optional package is needed and not installed."""


class NativeError(EagleEdgeError):
    """The native layer refused; the message is its own."""
