"""GBNF rules as a grammar in llguidance's Lark dialect.

llguidance divides text into words, which automata recognise, and rules over words, which a parser follows. Automata are
far cheaper, so every part of a rule that does not lead back to the rule becomes a word, as large as it can be. A
grammar without recursion is one word. In one with recursion, where a word could end or go on, it goes on: such a
grammar never allows a text it should not, but may ask for a longer word where a shorter one would do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from .gbnf import Alternatives, Characters, Literal, Node, Reference, Repeat, Sequence

__all__ = ["to_lark"]


def to_lark(rules: Mapping[str, Node]) -> str:
    """The Lark text of complete GBNF rules; its start is their ``root``."""
    return _Writer(rules).text()


class _Writer:
    """Names the definitions of one grammar: ``r<i>`` rules, ``R<i>`` rules that are words, ``W<i>`` words of rules."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._number = {name: index for index, name in enumerate(rules)}
        self._words = _acyclic(rules)
        self._parts: list[str] = []

    def text(self) -> str:
        lines = [f"start: {self._name('root')}"]
        for name, node in self._rules.items():
            body = self._word(node) if name in self._words else self._rule(node)
            lines.append(f"{self._name(name)}: {body}")
        return "\n".join(lines + self._parts) + "\n"

    def _name(self, rule: str) -> str:
        return f"{'R' if rule in self._words else 'r'}{self._number[rule]}"

    def _word(self, node: Node) -> str:
        """``node`` as the expression of a word."""
        match node:
            case Literal(text):
                return json.dumps(text, ensure_ascii=False)
            case Characters():
                return _class(node)
            case Reference(name):
                return self._name(name)
            case Sequence(parts):
                return "(" + " ".join(map(self._word, parts)) + ")" if parts else '""'
            case Alternatives(parts):
                return "(" + " | ".join(map(self._word, parts)) + ")"
            case Repeat(part, low, high):
                return f"({self._word(part)}){_times(low, high)}"

    def _rule(self, node: Node) -> str:
        """``node`` as the expression of a rule, its largest regular parts being words."""
        if self._is_word(node):
            return self._name(node.name) if isinstance(node, Reference) else self._part(node)
        match node:
            case Reference(name):
                return self._name(name)
            case Sequence(parts):
                return "(" + " ".join(self._rule(part) for part in self._runs(parts)) + ")"
            case Alternatives(parts):
                words = tuple(part for part in parts if self._is_word(part))
                others = [self._rule(part) for part in parts if not self._is_word(part)]
                return "(" + " | ".join(others + ([self._rule(Alternatives(words))] if words else [])) + ")"
            case Repeat(part, low, high):
                return f"({self._rule(part)}){_times(low, high)}"
        raise AssertionError(f"{node} is always a word")

    def _runs(self, parts: tuple[Node, ...]) -> Iterator[Node]:
        """``parts`` with neighbouring words made one."""
        run: list[Node] = []
        for part in parts:
            if self._is_word(part):
                run.append(part)
                continue
            if run:
                yield run[0] if len(run) == 1 else Sequence(tuple(run))
            run = []
            yield part
        if run:
            yield run[0] if len(run) == 1 else Sequence(tuple(run))

    def _part(self, node: Node) -> str:
        name = f"W{len(self._parts)}"
        self._parts.append(f"{name}: {self._word(node)}")
        return name

    def _is_word(self, node: Node) -> bool:
        return all(name in self._words for name in _references(node))


def _acyclic(rules: Mapping[str, Node]) -> set[str]:
    """The rules that reach no cycle of references."""
    waits_for = {name: set(_references(node)) for name, node in rules.items()}
    used_by: dict[str, list[str]] = {name: [] for name in rules}
    for name, references in waits_for.items():
        for reference in references:
            used_by[reference].append(name)
    ready = [name for name, references in waits_for.items() if not references]
    done: set[str] = set()
    while ready:
        name = ready.pop()
        done.add(name)
        for user in used_by[name]:
            waits_for[user].discard(name)
            if not waits_for[user] and user not in done:
                ready.append(user)
    return done


def _references(node: Node) -> Iterator[str]:
    pending = [node]
    while pending:
        match pending.pop():
            case Reference(name):
                yield name
            case Sequence(parts) | Alternatives(parts):
                pending += parts
            case Repeat(part, _, _):
                pending.append(part)


def _class(node: Characters) -> str:
    ranges = "".join(f"\\u{{{first:x}}}-\\u{{{last:x}}}" for first, last in node.ranges)
    return f"/[{'^' if node.negated else ''}{ranges}]/"


def _times(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return f"{{{low},{high}}}"
