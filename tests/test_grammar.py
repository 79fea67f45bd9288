"""Grammars: what follows them and nothing else, and no grammar that ends the process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_edge import gbnf
from eagle_edge.config import SamplingParams
from eagle_edge.errors import GrammarError
from eagle_edge.gbnf import parse_gbnf
from eagle_edge.grammar import Grammar, compile_constraint
from eagle_edge.sampling import Sampler

END = 256
V = 260


class Bytes:
    """A vocabulary of the 256 bytes, an end token, a control token, and two longer tokens."""

    n_vocab = V
    pieces = (*(bytes([byte]) for byte in range(256)), b"<end>", b"<control>", b'{"', b"\xe2\x82")

    def piece(self, token: int, special: bool = False) -> bytes:
        return b"" if token in (END, 257) and not special else self.pieces[token]

    def is_end(self, token: int) -> bool:
        return token == END

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode())


VOCABULARY = Bytes()


def compiled(grammar: str) -> Grammar:
    constraint = compile_constraint(SamplingParams(grammar=grammar), VOCABULARY)
    assert constraint is not None
    return constraint


def follows(grammar: str, text: str) -> bool:
    """Whether the masks lead through ``text`` to an end."""
    constraint = compiled(grammar)
    for byte in text.encode():
        if not constraint.mask()[byte]:
            return False
        constraint.accept(byte)
    return bool(constraint.mask()[END])


def generated(params: SamplingParams, n: int = 400) -> str:
    """A random text under the constraint; fails when it does not end."""
    sampler = Sampler(params, V, end_ids=(END,), constraint=compile_constraint(params, VOCABULARY))
    generator = np.random.default_rng(params.seed)
    out = b""
    for position in range(n):
        logits = generator.standard_normal(V).astype(np.float32)
        logits[list(b'"]}0123456789')] += 3
        logits[END] += 3
        token = sampler.pick(logits, position)
        sampler.accept(token)
        if token == END:
            return out.decode()
        out += VOCABULARY.piece(token)
    raise AssertionError(f"no end in {out!r}")


# -- GBNF -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["", "y", "yesno"]),
        ('root ::= ("ab"+)+ "c"', ["abc", "abababc"], ["c", "ab"]),
        ('root ::= (("x"){2}){3}', ["xxxxxx"], ["xxxxx", "xxxxxxx"]),
        ('root ::= "a"{2,} "b"{0,1} "c"?', ["aa", "aaab", "aabc"], ["a", "aabb"]),
        (r'root ::= [^"\\\x00-\x1F] [a-c\]-]', ["éa", "x]", "€-"], ['"a', "\x1fa", "xd"]),
        (r'root ::= "\u00e9\n\t\"\\" [à-ü]', ['é\n\t"\\è'], ["e"]),
        ("root ::= .{2}", ["ab", "😀\n"], ["a", "abc"]),
        ("root ::= # a comment\n  (\n x | # another\n y-2)\nx ::= [0-9]\ny-2 ::= \r\n [a-z]\n\n", ["7", "q"], ["7q"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "()", "xx"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= "a" |', ["a", ""], ["b"]),
        ('root ::= item ("," item)*\nitem ::= "[" root "]" | [0-9]+', ["1", "[1,22],[3]"], ["[1", "1,"]),
    ],
)
def test_gbnf_means_what_llama_cpp_says(grammar: str, good: list[str], bad: list[str]) -> None:
    """Texts of the grammar are allowed byte by byte and may end; others are not or may not."""
    assert [text for text in good if not follows(grammar, text)] == []
    assert [text for text in bad if follows(grammar, text)] == []


REGULAR = st.recursive(
    st.sampled_from(['"a"', '"ab"', '""', "[ab]", "[^a]", "."]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({' '.join(parts)})"),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(grammar=REGULAR)
def test_a_grammar_without_recursion_is_followed_exactly(grammar: str) -> None:
    """Every text of up to three letters is allowed exactly if a slow matcher finds it."""
    text = f"root ::= {grammar}"
    rules = parse_gbnf(text)
    for letters in ("".join(found) for n in range(4) for found in product("ab", repeat=n)):
        expected = len(letters) in set(ends(rules, rules["root"], letters, 0))
        assert expected == follows(text, letters), letters


RECURSIVE = st.lists(
    st.sampled_from(['"a" root "b"', '"a"', "[ab] x", 'x "b"', '"(" root ")" x?', "x+", '"ab" root']),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(alternatives=RECURSIVE, seed=st.integers(0, 1000))
def test_a_recursive_grammar_allows_no_other_text(alternatives: list[str], seed: int) -> None:
    """What random choices under the masks end in is a text of the grammar."""
    text = f'root ::= {" | ".join(alternatives)} | "c"\nx ::= "a"? [bc]'
    rules, constraint = parse_gbnf(text), compiled(text)
    generator = np.random.default_rng(seed)
    out: list[int] = []
    for _ in range(14):
        allowed = np.flatnonzero(constraint.mask())
        assert len(allowed)
        if END in allowed:
            word = bytes(out).decode()
            assert len(word) in set(ends(rules, rules["root"], word, 0))
        token = int(generator.choice(allowed))
        if token == END:
            return
        constraint.accept(token)
        out.append(token)


def ends(rules: dict[str, gbnf.Node], node: gbnf.Node, text: str, start: int) -> Iterator[int]:
    """Every place where ``node`` can end that begins at ``start``: the obvious way, trying everything."""
    match node:
        case gbnf.Literal(literal):
            yield from [start + len(literal)] if text.startswith(literal, start) else []
        case gbnf.Characters(ranges, negated):
            if start < len(text) and negated != any(low <= ord(text[start]) <= high for low, high in ranges):
                yield start + 1
        case gbnf.Reference(name):
            yield from ends(rules, rules[name], text, start)
        case gbnf.Alternatives(parts):
            for part in parts:
                yield from ends(rules, part, text, start)
        case gbnf.Sequence(parts):
            places = {start}
            for part in parts:
                places = {end for place in places for end in ends(rules, part, text, place)}
            yield from places
        case gbnf.Repeat(part, low, high):
            places, n = {start}, 0
            found: set[int] = set()
            while places and (n <= low or places - found) and (high is None or n <= high):
                found |= places if n >= low else set()
                places = {end for place in places for end in ends(rules, part, text, place)}
                n += 1
            yield from found


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("hello world", "line 1 of the grammar: expected ::="),
        ('x ::= "a"', "no rule named root"),
        ('root ::= "a"\nroot ::= "b"', "line 2 .* defined twice"),
        ("root ::= \n\n x", "line 3 .* no rule named x"),
        ('root ::= ("a"', "expected \\)"),
        ('root ::= "a', "does not end"),
        ("root ::= [a", "does not end"),
        ("root ::= []", "allows no character"),
        ("root ::= [b-a]", "ends before it begins"),
        (r'root ::= "\q"', "unknown escape"),
        (r'root ::= "\ud800"', "no character"),
        (r'root ::= "\u00"', "no character"),
        ("root ::= *", "nothing that it could repeat"),
        ('root ::= "a"{3,1}', "ends before it begins"),
        ('root ::= "a"{x}', "expected a number"),
        ('root ::= "a"{1000000000}', "100000 at most"),
        ("root ::= <think>", "not supported"),
        ('root ::= "a" ]', "expected the end of the rule"),
        ("root ::= " + "(" * 5000, "nested more than"),
        ("root ::= root", "no text"),
        ("root ::= " + "a" * 2_000_000, "characters"),
    ],
)
def test_a_broken_grammar_is_one_clear_line(grammar: str, message: str) -> None:
    """The error says where and what, and the next grammar works."""
    with pytest.raises(GrammarError, match=message) as caught:
        compiled(grammar)
    assert "\n" not in str(caught.value)
    assert follows('root ::= "a"', "a")


# -- JSON schema ------------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dög"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("as_text", [False, True])
def test_random_text_under_a_schema_obeys_it(as_text: bool) -> None:
    """Enum, integer bounds, required keys and list length hold for whatever is sampled."""
    for seed in range(15):
        schema = json.dumps(SCHEMA) if as_text else SCHEMA
        value = json.loads(generated(SamplingParams(temperature=1.0, seed=seed, json_schema=schema)))
        assert set(value) == {"kind", "age", "tags"}
        assert value["kind"] in {"cat", "dög"}
        assert isinstance(value["age"], int)
        assert 0 <= value["age"] <= 99
        assert len(value["tags"]) <= 2
        assert set(value["tags"]) <= {"x", "y"}


def test_control_tokens_are_never_allowed() -> None:
    """A control token is no text, even where its spelling would fit."""
    constraint = compiled('root ::= "<control>" | .*')
    assert not constraint.mask()[257]
    assert constraint.mask()[ord("<")]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "bogus"}, "bogus"),
        ("[1]", "object"),
        ({"$ref": "#"}, "no text"),
        ({"$ref": "http://example.com/x"}, "compiled"),
        ({"enum": [f"value {i}" for i in range(200_000)]}, "characters"),
    ],
)
def test_a_broken_schema_is_one_clear_line(schema: dict[str, object] | str, message: str) -> None:
    """The error says what, and the next schema works."""
    with pytest.raises(GrammarError, match=message) as caught:
        compile_constraint(SamplingParams(json_schema=schema), VOCABULARY)
    assert "\n" not in str(caught.value)
    assert generated(SamplingParams(temperature=1.0, seed=1, json_schema='{"enum": [7]}')) == "7"


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE = [
    {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
    {"type": "array", "minItems": 10**9, "maxItems": 2 * 10**9},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "pattern": "^(a{1000}){1000}$"},
    {"type": "string", "pattern": "^(((a{30}){30}){30}){30}$"},
    {"type": "integer", "multipleOf": 10**9 + 7},
    {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2000)}},
    {"allOf": [{"anyOf": [{"minimum": i, "maximum": i + j} for j in range(30)]} for i in range(8)]},
    nested(20_000),
]


def test_hostile_schemas_do_not_end_the_process() -> None:
    """With a billion items and the like, a process of little memory goes on to the next request."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "import sys; sys.setrecursionlimit(100000)\n"
        "import test_grammar as t\n"
        "for schema in t.HOSTILE:\n"
        "    try: print(len(t.generated(t.SamplingParams(temperature=1.0, seed=1, json_schema=schema), 50)))\n"
        "    except (t.GrammarError, AssertionError) as error: print(type(error).__name__)\n"
        "print('next:', t.generated(t.SamplingParams(temperature=1.0, seed=1, json_schema='{\"enum\": [7]}')))\n"
    )
    folder = __file__.rsplit("/", 1)[0]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, (done.stdout.splitlines() or [""])[-1]) == (0, "next: 7"), done.stderr


def test_a_model_without_end_tokens_is_refused() -> None:
    """A grammar that could never let the text end is an error."""

    class Endless(Bytes):
        def is_end(self, token: int) -> bool:
            return False

    with pytest.raises(GrammarError, match="no end token"):
        compile_constraint(SamplingParams(grammar='root ::= "a"'), Endless())
