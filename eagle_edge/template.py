"""From a conversation to the prompt's tokens, by the chat template that the model's file carries.

Words of a message that spell a control token stay words: they are taken out of the messages before rendering, put back
into the rendered text, and tokenised without reading control tokens. So a template that looks for control tokens inside
a message does not find them. There is one BOS where the template or the vocabulary asks for it, never two.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .errors import FileFormatError
from .gguf_header import read_header
from .sandbox import SandboxedTemplate

__all__ = ["CHATML", "ChatTemplate", "Message", "Segment"]

#: Used for files without a template, as llama.cpp does.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_UNKNOWN, _CONTROL = 2, 3  # token types in a GGUF that the tokenizer reads out of text only when told to

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt, and whether control tokens are read out of it."""

    text: str
    parse_special: bool


class Vocabulary(Protocol):
    """The part of a target that a prompt needs."""

    path: str

    @property
    def bos(self) -> int:
        """The id of BOS, or -1."""

    @property
    def adds_bos(self) -> bool:
        """Whether the vocabulary wants BOS before every prompt."""

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of ``text``."""


class ChatTemplate:
    """Renders and tokenises conversations.

    Args:
        vocabulary: of the target.
        source: the template's text; None takes ChatML.
        control: the spellings of the control tokens.
        bos, eos: what the template's ``bos_token`` and ``eos_token`` stand for.

    Attributes:
        is_fallback: no template was given and ChatML stands in; worth a line to the user.

    Raises:
        TemplateError: the template cannot be compiled.
    """

    def __init__(
        self, vocabulary: Vocabulary, source: str | None, control: Sequence[str] = (), bos: str = "", eos: str = ""
    ) -> None:
        self.is_fallback = source is None
        self._vocabulary = vocabulary
        self._template = SandboxedTemplate(CHATML if source is None else source)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        spellings = sorted(filter(None, control), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, spellings))) if spellings else None

    @classmethod
    def of(cls, target: Vocabulary, source: str | None = None) -> ChatTemplate:
        """The template of the target's file, or ``source`` in its place.

        Raises:
            FileFormatError: the file's tokenizer metadata are broken.
            TemplateError: the template cannot be compiled.
        """
        header = read_header(Path(target.path))
        spellings = header.strings("tokenizer.ggml.tokens") or []
        types = header.integers("tokenizer.ggml.token_type") if "tokenizer.ggml.token_type" in header.metadata else ()
        control = [text for text, kind in zip(spellings, types, strict=False) if kind in (_UNKNOWN, _CONTROL)]
        own = header.metadata.get("tokenizer.chat_template")
        if own is not None and not isinstance(own, str):
            raise FileFormatError(f"{target.path}: the key tokenizer.chat_template is not a text")

        def spelling(key: str) -> str:
            token = header.metadata.get(key)
            return spellings[token] if isinstance(token, int) and 0 <= token < len(spellings) else ""

        bos, eos = spelling("tokenizer.ggml.bos_token_id"), spelling("tokenizer.ggml.eos_token_id")
        return cls(target, source if source is not None else own, control, bos, eos)

    def encode(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The prompt's token ids, ending where the assistant begins; errors as `render`."""
        ids: list[int] = []
        for segment in self.render(messages, add_generation_prompt):
            ids += self._vocabulary.tokenize(segment.text, add_special=False, parse_special=segment.parse_special)
        bos = self._vocabulary.bos
        if self._vocabulary.adds_bos and bos >= 0 and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[Segment]:
        """The prompt in segments; joined, their texts are the rendered template.

        Args:
            messages: mappings with "role" and "content".
            add_generation_prompt: end with the beginning of the assistant's message.
            variables: more of the template's variables, such as ``tools``.

        Raises:
            ValueError: there is no message, or one has no role.
            TemplateError: the template fails or refuses the messages.
        """
        if not messages:
            raise ValueError("there are no messages; give at least one")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ValueError(f"the message {message!r:.60} has no role; use {{'role': ..., 'content': ...}}")
        taken: dict[str, str] = {}
        text = self._template.render(
            {
                **self._tokens,
                "tools": None,
                **self._hide(dict(variables or {}), taken),
                "messages": self._hide(list(messages), taken),
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return _restore(text, taken)

    def _hide(self, value: Any, taken: dict[str, str]) -> Any:
        """``value`` with every spelling of a control token in it replaced by a word no one can guess."""
        if self._control is None:
            return value
        if isinstance(value, str):

            def stand_in(match: re.Match[str]) -> str:
                word = f"control{secrets.token_hex(8)}"
                taken[word] = match.group()
                return word

            return self._control.sub(stand_in, value)
        if isinstance(value, Mapping):
            return {self._hide(key, taken): self._hide(entry, taken) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._hide(entry, taken) for entry in value]
        return value


def _restore(text: str, taken: Mapping[str, str]) -> list[Segment]:
    """``text`` divided at the words of ``taken``, which become what they stand for, without control tokens."""
    if not taken:
        return [Segment(text, True)]
    parts = re.split(f"({'|'.join(taken)})", text)
    return [Segment(taken.get(part, part), part not in taken) for part in parts if part]
