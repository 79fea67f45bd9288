"""GBNF, llama.cpp's grammar notation, read into a small tree.

The notation is that of llama.cpp's grammars/README.md: rules ``name ::= ...``, literals, character classes, ``.``,
groups, ``|`` and the repetitions ``* + ? {m} {m,} {m,n}``. References to tokens (``<...>``) are not supported.
What a grammar is compiled to is `lark.py`'s matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from .errors import GrammarError

__all__ = ["Alternatives", "Characters", "Literal", "Node", "Reference", "Repeat", "Sequence", "parse_gbnf"]


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Characters:
    """One character inside, or outside, the ranges (both ends included)."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """What the rule of this name describes."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after another; no parts are the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of the parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The part at least ``low`` times and at most ``high`` times, None being no limit."""

    part: Node
    low: int
    high: int | None


Node = Literal | Characters | Reference | Sequence | Alternatives | Repeat

_MAX_DEPTH = 100
_MAX_REPEAT = 100_000
_ANY = Characters(((0, 0x10FFFF),), False)
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"} | {character: character for character in '\\"[]-'}
_REPETITIONS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules by name, in order.

    Raises:
        GrammarError: the text is no GBNF, has no rule ``root``, defines a rule twice or names one that is missing.
    """
    parser = _Parser(text)
    rules = parser.rules()
    if "root" not in rules:
        raise GrammarError("the grammar has no rule named root")
    for name, line in parser.used.items():
        if name not in rules:
            raise GrammarError(f"line {line} of the grammar: there is no rule named {name}")
    return rules


class _Parser:
    """Recursive descent over one text; every method leaves ``at`` behind what it has read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.used: dict[str, int] = {}  # referenced names, with a line each

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self.space(newlines=True)
        while self.at < len(self.text):
            name = self.name()
            self.space()
            if not self.text.startswith("::=", self.at):
                self.fail(f"expected ::= after {name}")
            self.at += 3
            if name in rules:
                self.fail(f"the rule {name} is defined twice")
            self.space(newlines=True)
            rules[name] = self.alternatives(nested=False)
            if self.at < len(self.text) and self.peek() not in "\r\n":
                self.fail("expected the end of the rule")
            self.space(newlines=True)
        return rules

    def alternatives(self, nested: bool) -> Node:
        parts = [self.sequence(nested)]
        while self.peek() == "|":
            self.at += 1
            self.space(newlines=True)
            parts.append(self.sequence(nested))
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def sequence(self, nested: bool) -> Node:
        parts: list[Node] = []
        while True:
            character = self.peek()
            if character in _REPETITIONS or character == "{":
                if not parts:
                    self.fail(f"{character} follows nothing that it could repeat")
                parts[-1] = Repeat(parts[-1], *self.repetition(nested))
            elif character and (character in '"[(.' or _is_name(character)):
                parts.append(self.element())
            elif character and character in "<!":
                self.fail("references to tokens are not supported")
            else:
                return parts[0] if len(parts) == 1 else Sequence(tuple(parts))
            self.space(newlines=nested)

    def element(self) -> Node:
        character = self.peek()
        if _is_name(character):
            line = self.line()
            name = self.name()
            self.used.setdefault(name, line)
            return Reference(name)
        self.at += 1
        if character == ".":
            return _ANY
        if character == '"':
            return self.literal()
        return self.characters() if character == "[" else self.group()

    def group(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"groups are nested more than {_MAX_DEPTH} deep")
        self.space(newlines=True)
        inside = self.alternatives(nested=True)
        if self.peek() != ")":
            self.fail("expected )")
        self.at += 1
        self.depth -= 1
        return inside

    def literal(self) -> Node:
        out = []
        while self.peek() != '"':
            out.append(self.character())
        self.at += 1
        return Literal("".join(out))

    def characters(self) -> Node:
        negated = self.peek() == "^"
        self.at += negated
        ranges = []
        while self.peek() != "]":
            first = last = ord(self.character())
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                last = ord(self.character())
            if first > last:
                self.fail(f"the range ends before it begins: {chr(first)}-{chr(last)}")
            ranges.append((first, last))
        self.at += 1
        if not ranges and not negated:
            self.fail("[] allows no character")
        return Characters(tuple(ranges), negated) if ranges else _ANY

    def character(self) -> str:
        """One character of a literal or class, escapes read."""
        character = self.peek()
        if not character:
            self.fail("a literal or class does not end")
        self.at += 1
        if character != "\\":
            return character
        escape = self.peek()
        self.at += 1
        if escape not in _HEX_DIGITS:
            if escape not in _ESCAPES:
                self.fail(f"unknown escape \\{escape}")
            return _ESCAPES[escape]
        digits = self.text[self.at : self.at + _HEX_DIGITS[escape]]
        try:
            code = int(digits, 16)
        except ValueError:
            code = -1
        if len(digits) < _HEX_DIGITS[escape] or not 0 <= code <= 0x10FFFF or 0xD800 <= code < 0xE000:
            self.fail(f"\\{escape}{digits} is no character")
        self.at += len(digits)
        return chr(code)

    def repetition(self, nested: bool) -> tuple[int, int | None]:
        character = self.peek()
        self.at += 1
        if character != "{":
            return _REPETITIONS[character]
        self.space(newlines=nested)
        low = self.count()
        high: int | None = low
        self.space(newlines=nested)
        if self.peek() == ",":
            self.at += 1
            self.space(newlines=nested)
            high = self.count() if self.peek().isdecimal() else None
            self.space(newlines=nested)
        if self.peek() != "}":
            self.fail("expected }")
        if high is not None and high < low:
            self.fail(f"the repetition {{{low},{high}}} ends before it begins")
        self.at += 1
        return low, high

    def count(self) -> int:
        start = self.at
        while self.peek() and self.peek() in "0123456789":
            self.at += 1
        digits = self.text[start : self.at]
        if not digits:
            self.fail("expected a number")
        if len(digits) > 9 or int(digits) > _MAX_REPEAT:
            self.fail(f"a repetition may count to {_MAX_REPEAT} at most")
        return int(digits)

    def name(self) -> str:
        start = self.at
        while _is_name(self.peek()):
            self.at += 1
        if start == self.at:
            self.fail("expected the name of a rule")
        return self.text[start : self.at]

    def space(self, newlines: bool = False) -> None:
        """Skip blanks and comments, and line ends where they mean nothing."""
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "#":
                while self.peek() and self.peek() not in "\r\n":
                    self.at += 1
            elif character in " \t" or (newlines and character in "\r\n"):
                self.at += 1
            else:
                return

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def fail(self, message: str) -> NoReturn:
        near = self.text[self.at : self.at + 20].split("\n")[0]
        raise GrammarError(f"line {self.line()} of the grammar: {message}" + (f", near {near!r}" if near else ""))


def _is_name(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in "-_") and character != ""
