"""Question sets: a folder of ``*.jsonl`` files, one question a line, as the EAGLE papers' evaluations use them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import FileFormatError

__all__ = ["Question", "load_questions"]


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of a set: the first of its ``turns``, its ``prompt``, or its first user message."""

    set: str
    number: int
    text: str


def load_questions(folder: Path, sets: Sequence[str] = (), limit: int | None = None) -> list[Question]:
    """The first ``limit`` questions of each set, set after set; all sets when ``sets`` is empty.

    Raises:
        FileFormatError: the folder or a set does not exist, or a line is not a question.
    """
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: no such folder; give one that holds question sets as .jsonl files")
    present = sorted(path.stem for path in folder.glob("*.jsonl"))
    for name in sets or present:
        if name not in present:
            raise FileFormatError(f"{folder}: no set {name!r}; it holds {', '.join(present) or 'no .jsonl file'}")
    questions = []
    for name in sets or present:
        # Not splitlines(): JSON strings may hold U+2028 and other characters it takes for the end of a line.
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
        for number, line in enumerate(lines[:limit]):
            questions.append(Question(name, number, _text(folder / f"{name}.jsonl", number, line)))
    if not questions:
        raise FileFormatError(f"{folder}: no questions in it; it needs .jsonl files with one question a line")
    return questions


def _text(path: Path, number: int, line: str) -> str:
    try:
        record = json.loads(line)
        if "turns" in record:
            text = record["turns"][0]
        elif "prompt" in record:
            text = record["prompt"]
        else:
            text = next(message["content"] for message in record["messages"] if message["role"] == "user")
    except (ValueError, KeyError, IndexError, TypeError, StopIteration):
        text = None
    if not isinstance(text, str) or not text:
        raise FileFormatError(f"{path}:{number + 1}: not a question; it needs turns, prompt or messages with a text")
    return text
