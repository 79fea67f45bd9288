"""Constrained text: a GBNF grammar or JSON schema as a mask over the next token.

The parsing is llguidance's (https://github.com/guidance-ai/llguidance), under limits that end a hostile grammar with an
error instead of the process. Only accepted tokens are ever consumed, so nothing is rolled back.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import llguidance
import numpy as np
import numpy.typing as npt

from .config import SamplingParams
from .errors import GrammarError
from .gbnf import parse_gbnf
from .lark import to_lark

__all__ = ["Grammar", "Vocabulary", "compile_constraint"]

#: Deeper schemas would exhaust llguidance's stack, which ends the process.
_MAX_DEPTH = 100
_MAX_CHARACTERS = 1_000_000
#: With these, the dearest of the hostile grammars in the tests ends within a second and 150 MB.
_LIMITS = llguidance.LLParserLimits(initial_lexer_fuel=300_000, max_lexer_states=50_000, verbose_errors=False)
#: Between the tokens of JSON: a model that may indent without end often does (the same bound as llama.cpp's).
_WHITESPACE = r"( |\n[ \t]{0,20})?"


class Vocabulary(Protocol):
    """The part of a target that a grammar needs."""

    n_vocab: int

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; control tokens are empty unless ``special``."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends generation."""

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of ``text``."""


class Grammar:
    """A compiled grammar at its place in one text.

    Args:
        tokenizer: the vocabulary as llguidance has it.
        source: a grammar in llguidance's own form.
        n_vocab: V, the width of the mask.

    Raises:
        GrammarError: the grammar is wrong, too large, or no text can follow it.
    """

    def __init__(self, tokenizer: llguidance.LLTokenizer, source: str, n_vocab: int) -> None:
        self._matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
        self._bits = np.zeros((n_vocab + 31) // 32, np.int32)
        self._n_vocab = n_vocab
        self._mask: npt.NDArray[np.bool_] | None = None
        self._check("the grammar cannot be compiled")
        try:
            self.mask()
        except GrammarError as error:
            if "NoExtension" in str(error):  # llguidance's name for a start that leads nowhere
                raise GrammarError("the grammar describes no text") from None
            raise

    def mask(self) -> npt.NDArray[np.bool_]:
        """[V] True for the tokens that may follow; end tokens where the text may end.

        Raises:
            GrammarError: following the grammar here costs more than the limits allow.
        """
        if self._mask is None:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            self._check("the grammar cannot be followed here")
            bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
            self._mask = bits[: self._n_vocab].astype(np.bool_)
        return self._mask

    def accept(self, token: int) -> None:
        """Step over ``token``, which the mask allowed."""
        self._mask = None
        self._matcher.consume_token(token)
        self._check(f"the grammar does not allow token {token} here")

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"{what}: {_first_line(self._matcher.get_error())}")


def compile_constraint(params: SamplingParams, vocabulary: Vocabulary) -> Grammar | None:
    """The grammar that ``params`` asks for, at its start, or None when it asks for none.

    The first one for a vocabulary takes about a second, which llguidance needs to index it.

    Raises:
        GrammarError: it cannot be compiled; one line says why.
    """
    if params.grammar is None and params.json_schema is None:
        return None
    try:
        source = _from_gbnf(params.grammar) if params.grammar is not None else _from_schema(params.json_schema)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the grammar cannot be read: {_first_line(str(error))}") from None
    return Grammar(_tokenizer(vocabulary), source, vocabulary.n_vocab)


def _from_gbnf(text: str) -> str:
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(f"the grammar has {len(text)} characters; at most {_MAX_CHARACTERS} are read")
    return str(llguidance.LLMatcher.grammar_from_lark(to_lark(parse_gbnf(text))))


def _from_schema(schema: str | Mapping[str, Any] | None) -> str:
    value = json.loads(schema) if isinstance(schema, str) else schema
    if isinstance(value, bool):
        value = {} if value else {"not": {}}
    if not isinstance(value, Mapping):
        raise GrammarError("a JSON schema is an object, or true or false")
    if _depth(value) > _MAX_DEPTH:
        raise GrammarError(f"the JSON schema is nested more than {_MAX_DEPTH} levels deep")
    text = json.dumps(value)
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(f"the JSON schema has {len(text)} characters; at most {_MAX_CHARACTERS} are read")
    return str(llguidance.LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": _WHITESPACE}))


def _depth(value: object) -> int:
    """How deep ``value`` is nested, without recursion."""
    depth, level = 0, [value]
    while level and depth <= _MAX_DEPTH:
        depth += 1
        following: list[object] = []
        for entry in level:
            if isinstance(entry, Mapping):
                following += entry.values()
            elif isinstance(entry, (list, tuple)):
                following += entry
        level = following
    return depth


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


# -- the vocabulary, indexed once per target ---------------------------------------------------------------------------

_TOKENIZERS: weakref.WeakKeyDictionary[Vocabulary, llguidance.LLTokenizer] = weakref.WeakKeyDictionary()


class _Wrapped:
    """A vocabulary in the shape llguidance reads; it must not keep the target alive."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = range(vocabulary.n_vocab)
        self._vocabulary = weakref.ref(vocabulary)
        self.tokens = [vocabulary.piece(token, special=True) for token in ids]
        ends = [token for token in ids if vocabulary.is_end(token)]
        if not ends:
            raise GrammarError("this model has no end token, so a grammar could never let the text end")
        control = {token for token in ids if self.tokens[token] and not vocabulary.piece(token)}
        self.end_ids = ends
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(control | set(ends))

    def __call__(self, text: bytes | str) -> list[int]:
        vocabulary = self._vocabulary()
        if vocabulary is None:
            raise GrammarError("the model of this grammar is closed")
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return vocabulary.tokenize(plain, add_special=False)


def _tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    if vocabulary not in _TOKENIZERS:
        wrapped = _Wrapped(vocabulary)
        _TOKENIZERS[vocabulary] = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(wrapped), n_vocab=vocabulary.n_vocab, eos_token=wrapped.end_ids
        )
    return _TOKENIZERS[vocabulary]
