"""Jinja templates that came with a file from anywhere: rendered in a sandbox, within a time and a size.

Jinja's own sandbox keeps a template from reaching Python. It does not keep it from looping or from growing a string
without end, so every loop round and every call looks at the clock, and everything that makes text or numbers larger is
checked before or as it grows. The helpers are those that chat templates on Hugging Face expect.
"""

from __future__ import annotations

import functools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.parser
import jinja2.visitor
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import TemplateError

__all__ = ["SandboxedTemplate"]

_MAX_SECONDS = 2.0
#: Characters of one string, so also of the prompt: more than any context holds.
_MAX_CHARACTERS = 20_000_000
_MAX_ITEMS = 1_000_000
_MAX_SOURCE = 1_000_000
#: What the sizes of one filter's or string method's arguments may multiply to.
_MAX_WORK = 200_000_000
_MAX_BITS = 10_000


class SandboxedTemplate:
    """A compiled template.

    Args:
        source: the text of the template.

    Raises:
        TemplateError: it has a syntax error or is too large.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(source)} characters; at most {_MAX_SOURCE} are read")
        self._lock = threading.Lock()  # the clock belongs to one rendering at a time
        self._environment = _Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"])
        try:
            code = self._environment.compile(self._environment.instrumented(source))
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {_one_line(error)}") from None
        self._template = jinja2.Template.from_code(self._environment, code, self._environment.make_globals(None))

    def render(self, variables: Mapping[str, object]) -> str:
        """The text of the template with these variables.

        Raises:
            TemplateError: it fails, refuses the variables, or takes too long; one line says why.
        """
        with self._lock:
            self._environment.deadline = time.monotonic() + _MAX_SECONDS
            try:
                return self._template.render(variables)
            except TemplateError:
                raise
            except Exception as error:  # whatever a hostile or broken template provokes
                raise TemplateError(f"the chat template failed: {_one_line(error)}") from None


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a clock and sizes."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, extensions: list[Any]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.deadline = math.inf
        self.filters["tojson"] = _tojson
        for name, function in self.filters.items():
            self.filters[name] = _bounded(function)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.globals.pop("lipsum", None)

    def instrumented(self, source: str) -> nodes.Template:
        """The parsed template, its loops and joins made to call `tick` and `joined`."""
        tree: nodes.Template = _Instrument().visit(self.parse(source))
        tree.set_environment(self)
        return tree

    def tick(self) -> bool:
        """Look at the clock."""
        if time.monotonic() > self.deadline:
            raise TemplateError(f"the chat template takes more than {_MAX_SECONDS:g} seconds")
        return True

    def joined(self, *parts: object) -> str:
        """The operator ``~``."""
        return self.concat(str(part) for part in parts)

    def concat(self, parts: Iterable[str]) -> str:
        """Every buffer of a template ends here."""
        out, size = [], 0
        for part in parts:
            self.tick()
            out.append(part)
            size += len(part)
            _check_size(size)
        return "".join(out)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        if isinstance(getattr(obj, "__self__", None), str):
            _check_work(obj.__self__, *args, *kwargs.values())
        return _checked(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` as the sandbox allows it."""
        _check_widths(getattr(value, "__self__", None))
        return super().wrap_str_format(value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.tick()
        if operator == "*" and not (_is_number(left) and _is_number(right)):
            _check_work(left, right)
        if operator == "**" and (abs(right) > _MAX_BITS or abs(left) > 2**64):
            raise TemplateError("the chat template computes a number that is too large")
        if operator == "%" and isinstance(left, str):
            _check_widths(left)
        return _checked(super().call_binop(context, operator, left, right))


class _Instrument(jinja2.visitor.NodeTransformer):
    """Loops look at the clock in every round, and ``~`` goes through `_Environment.joined`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_call("tick", [], node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        """The block's own nodes."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _call(name: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None, lineno=lineno)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses arguments whose sizes multiply to too much work."""

    @functools.wraps(function)  # keeps the marks by which jinja passes the context
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_work(*args, *kwargs.values())
        for argument in args:
            _check_widths(argument)
        return _checked(function(*args, **kwargs))

    return bounded


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _check_work(*values: object) -> None:
    work = 1
    for value in values:
        if isinstance(value, int):
            work *= max(1, abs(value))
        elif isinstance(value, (str, list, tuple, dict)):
            work *= max(1, len(value))
    if work > _MAX_WORK:
        raise TemplateError("the chat template asks for a text that is too large")


#: A printf or format field that takes its width from elsewhere, or spells one of six digits or more.
_WIDE_FIELD = re.compile(r"%[^%a-zA-Z]{0,40}?(\*|\d{6})|\{[^{}]{0,80}?(\{|\d{6})")


def _check_widths(value: object) -> None:
    if isinstance(value, str) and _WIDE_FIELD.search(value):
        raise TemplateError("the chat template asks for a field that may be too wide")


def _check_size(size: int) -> None:
    if size > _MAX_CHARACTERS:
        raise TemplateError(f"the chat template makes more than {_MAX_CHARACTERS} characters")


def _checked(value: Any) -> Any:
    if isinstance(value, str):
        _check_size(len(value))
    elif isinstance(value, (list, tuple)) and len(value) > _MAX_ITEMS:
        raise TemplateError(f"the chat template makes a list of more than {_MAX_ITEMS} items")
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise TemplateError("the chat template computes a number that is too large")
    return value


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates expect it: without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(f"the chat template refuses these messages: {message}")


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
