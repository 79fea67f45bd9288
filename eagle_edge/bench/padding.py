"""Longer prompts: other questions before the question, until the conversation has the length asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..questions import Question
from .runs import Prompt

__all__ = ["padded_prompts"]

Encode = Callable[[str], list[int]]


def padded_prompts(
    questions: Sequence[Question],
    contexts: Sequence[int],
    encode: Encode,
    tokenize: Encode,
    detokenize: Callable[[list[int]], str],
) -> list[Prompt]:
    """Every question as it is (context 0) or padded to nearly the number of tokens, never more.

    Args:
        questions: in order.
        contexts: lengths.
        encode: the ids of a conversation that consists of this message.
        tokenize: the ids of a text alone.
        detokenize: the text of ids.

    Raises:
        ValueError: a question is longer than the length asked for.
    """
    prompts = []
    for context in contexts:
        for at, question in enumerate(questions):
            text = question.text
            ids = encode(text)
            if context:
                missing = context - len(ids)
                if missing < 0:
                    raise ValueError(f"{question.set} {question.number} has {len(ids)} tokens, more than {context}")
                others = [q.text for q in [*questions[at + 1 :], *questions[:at]]] or [text]
                text, ids = _padded(text, others, context, missing, encode, tokenize, detokenize)
            prompts.append(Prompt(question.set, text, ids, context))
    return prompts


def _padded(
    text: str,
    others: list[str],
    context: int,
    missing: int,
    encode: Encode,
    tokenize: Encode,
    detokenize: Callable[[list[int]], str],
) -> tuple[str, list[int]]:
    """``text`` after at most ``missing`` tokens of filler, and its ids.

    Text cut by tokens may be read back as more of them, so the filler is shortened until it fits.
    """
    while True:
        padded = f"{_filler(others, missing, tokenize, detokenize)}\n\n{text}"
        ids = encode(padded)
        if len(ids) <= context or missing == 0:
            return padded, ids
        missing = max(0, missing - (len(ids) - context))


def _filler(others: list[str], n: int, tokenize: Encode, detokenize: Callable[[list[int]], str]) -> str:
    """About ``n`` tokens of the others' texts, again from the start where they are too short."""
    once = tokenize("\n\n".join(others) + "\n\n")
    return detokenize((once * (n // len(once) + 1))[:n])
