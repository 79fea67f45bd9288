"""Runs llama.cpp's converter; started by ``reference.run_reference`` and never imported by anything.

Its output is an answer file: warnings, or one line that says what went wrong.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

UNKNOWN_TOKENIZER = (
    "its pre-tokenizer is not one that llama.cpp knows; name the right one with --pre-tokenizer "
    "(for example gpt-2, llama-bpe, qwen2)"
)


NOISE = ("Duplicated key name", "Unknown RoPE type: default")  # it says these of healthy models


class _Messages(logging.Handler):
    """Keeps what the converter logs as a warning or an error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        kept = self.errors if record.levelno >= logging.ERROR else self.warnings
        kept.append(" ".join(record.getMessage().strip("* ").split()))


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Convert as ``job`` says."""
    messages = _Messages()
    logging.getLogger().addHandler(messages)
    sys.path.insert(0, job["converter"])
    try:
        import convert_hf_to_gguf as reference  # type: ignore[import-not-found]

        if job["pre_tokenizer"]:
            _override_pre_tokenizer(job["pre_tokenizer"])
        sys.argv = _arguments(job)
        reference.main()
    except SystemExit as error:
        if error.code:
            return {
                "error": _line(messages.errors[-1] if messages.errors else f"the converter ended with {error.code}")
            }
    except ImportError as error:
        return {"error": f"the converter needs a package that is not installed: {error}"}
    except Exception as error:  # whatever it raises becomes one line
        return {"error": _line(str(error) or type(error).__name__, error)}
    return {"warnings": [warning for warning in messages.warnings if warning and not warning.startswith(NOISE)]}


def _arguments(job: dict[str, Any]) -> list[str]:
    arguments = ["convert_hf_to_gguf", job["checkpoint"], "--outfile", job["output"], "--outtype", job["outtype"]]
    if job["vocab_only"]:
        arguments.append("--vocab-only")
    if job["metadata"]:
        handle, path = tempfile.mkstemp(suffix=".json", dir=os.getcwd())
        with os.fdopen(handle, "w") as file:
            json.dump(job["metadata"], file)
        arguments += ["--metadata", path]
    return arguments


def _override_pre_tokenizer(name: str) -> None:
    from conversion.base import TextModel  # type: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda self, tokenizer: name


def _line(message: str, error: Exception | None = None) -> str:
    text = " ".join(message.split())
    if "pre-tokenizer was not recognized" in text:
        return UNKNOWN_TOKENIZER
    if "is not supported" in text and text.startswith("Model "):
        return f"{text.split()[1]} is an architecture that llama.cpp cannot convert"
    kind = "" if error is None or isinstance(error, (ValueError, NotImplementedError)) else f"{type(error).__name__}: "
    return f"llama.cpp's converter refuses it: {kind}{text[:400]}"


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    _answer = run(_job)
    Path(_job["answer"]).write_text(json.dumps(_answer))
