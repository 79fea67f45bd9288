"""What a caller may choose, as frozen dataclasses that are checked once, when they are made."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .threads import physical_cores

__all__ = ["KV_TYPES", "RULES", "DraftParams", "SamplingParams", "TargetParams"]

#: The ways a drafted token is accepted at temperature above 0; see ``verify.py``.
RULES = ("gumbel", "siblings", "rejection")
# ggml_type numbers of the cache types llama.cpp can attend over on every backend.
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}


@dataclass(frozen=True, slots=True)
class TargetParams:
    """How a target is loaded.

    Attributes:
        n_ctx: positions of text; 0 takes the model's own context.
        n_batch: most tokens of one prefill call, 1..4096.
        n_threads: CPU threads.
        make_room: use fewer threads while other programs keep processors busy.
        n_gpu_layers: layers on the GPU; 0 none, -1 all.
        type_k, type_v: types of the K and V caches, a key of ``KV_TYPES``.
        flash_attn: "auto", "on" or "off".
        max_nodes: most nodes of one tree, root included, 1..254.
        streams: give each of ``max_nodes`` independent sequences ``n_ctx`` positions of its own, for training data; no
            trees then.
        repack: let llama.cpp re-lay weights for its faster kernels.
        kernels: whose CPU kernels serve the weights: "auto" takes ours where they can run, "native" insists,
            "llama.cpp" forbids them. Ours have to be chosen before the process loads its first model.
        pair_single_row: evaluate a lone row as two, so that it takes the kernels that a tree takes.

    Raises:
        ValueError: a value is out of its range.
    """

    n_ctx: int = 4096
    n_batch: int = 512
    n_threads: int = field(default_factory=physical_cores)
    make_room: bool = True
    n_gpu_layers: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"
    max_nodes: int = 64
    streams: bool = False
    repack: bool = True
    kernels: Literal["auto", "native", "llama.cpp"] = "auto"
    pair_single_row: bool = False

    def __post_init__(self) -> None:
        _within("n_ctx", self.n_ctx, 0, 1 << 24)
        _within("n_batch", self.n_batch, 1, 4096)
        _within("n_threads", self.n_threads, 1, 512)
        _within("n_gpu_layers", self.n_gpu_layers, -1, 10_000)
        _within("max_nodes", self.max_nodes, 1, 254)
        _one_of("type_k", self.type_k, KV_TYPES)
        _one_of("type_v", self.type_v, KV_TYPES)
        _one_of("flash_attn", self.flash_attn, ("auto", "on", "off"))
        _one_of("kernels", self.kernels, ("auto", "native", "llama.cpp"))


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, got {value}")


def _one_of(name: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class DraftParams:
    """How a tree is drafted: EAGLE-2's dynamic tree (arXiv 2406.16858), in the terms of its published settings.

    Attributes:
        total: nodes to verify, the root included; 1 is plain decoding.
        depth: draft evaluations of a round after the first, so the deepest node lies ``depth + 1`` below the root.
        top_k: children drawn from a node, and nodes evaluated at each level; 1 is a chain.
        automatic: the sizes are bounds, within which every round takes what pays best; see ``policy.py``.
        repetitions: whether automatic trees also take what the text's own repetitions propose.

    Raises:
        ValueError: a size is out of its range, or ``depth`` and ``top_k`` cannot give ``total`` nodes.
    """

    total: int = 60
    depth: int = 7
    top_k: int = 10
    automatic: bool = False
    repetitions: bool = True

    def __post_init__(self) -> None:
        _within("total", self.total, 1, 254)
        _within("depth", self.depth, 0, 253)
        _within("top_k", self.top_k, 1, 253)
        most = 1 + self.top_k + self.depth * self.top_k**2
        if self.total > most:
            raise ValueError(f"depth {self.depth} and top_k {self.top_k} give at most {most} nodes, not {self.total}")

    @classmethod
    def auto(cls, total: int = 64) -> DraftParams:
        """Trees of at most ``total`` nodes, as large in every round as pays on this machine; often none."""
        return cls(total=total, depth=15, top_k=10, automatic=True)

    @classmethod
    def chain(cls, n: int) -> DraftParams:
        """A chain of ``n`` drafted tokens; 0 is plain decoding."""
        return cls(total=n + 1, depth=max(n - 1, 0), top_k=1)


def _check_number(name: str, value: Any, low: float, high: float, hint: str) -> None:
    """Refuse anything that is not a finite number in [low, high]."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; {hint}")


def _check_count(name: str, value: Any, low: int, hint: str) -> None:
    """Refuse anything that is not an integer of at least ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} is {value!r}; {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one token is chosen from the target's logits, and when generation ends.

    Attributes:
        temperature: 0 takes the most probable token; above 0 samples.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the fewest most probable tokens that together have this probability; 1 keeps all.
        min_p: keep tokens at least this fraction as probable as the most probable one; 0 keeps all.
        repeat_penalty: divides positive and multiplies negative logits of tokens in the penalty window; 1 is off.
        presence_penalty: subtracted once from the logit of every token in the window; 0 is off.
        frequency_penalty: subtracted for every occurrence in the window; 0 is off.
        penalty_last_n: the window in tokens, prompt included; 0 switches penalties off, -1 is the whole text.
        logit_bias: added to the logits of these token ids; ``-inf`` bans a token.
        seed: 0..2**64-1; None draws one, which ``Sampler.seed`` reports.
        grammar: a grammar in GBNF that the text must follow.
        json_schema: a JSON schema (JSON text or a mapping) that the text must follow.
        n_logprobs: None reports nothing, 0 the log-probability of each chosen token, n also the n most probable ones.
        max_tokens: the most tokens to generate; None goes on until the context is full.
        stop: strings that end the text where the first of them begins.
        stop_token_ids: tokens that end the text, besides the model's own end tokens.
        ignore_eos: ban the model's own end tokens.
        rule: how drafted tokens are accepted at temperature above 0: "gumbel" gives one text per seed, whatever is
            drafted; "siblings" and "rejection" are the published rules, whose text follows the same distribution.

    Raises:
        ValueError: a value is out of range; the message names it and says what is possible.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    n_logprobs: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    rule: str = "gumbel"

    def __post_init__(self) -> None:
        self._check_filters()
        self._check_penalties()
        self._check_bias()
        self._check_constraint()
        self._check_ends()
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < 2**64):
            raise ValueError(f"seed is {self.seed!r}; use an integer from 0 to 2**64-1, or None to draw one")
        if self.n_logprobs is not None:
            _check_count("n_logprobs", self.n_logprobs, 0, "use 0 or more, or None to report none")
        if self.rule not in RULES:
            raise ValueError(f"rule is {self.rule!r}; use one of {', '.join(RULES)}")

    def _check_filters(self) -> None:
        _check_number("temperature", self.temperature, 0, 100, "use 0 for the most probable token, or up to 100")
        _check_count("top_k", self.top_k, 0, "use 0 to keep all tokens, or a positive integer")
        _check_number("top_p", self.top_p, 0, 1, "use a probability above 0, up to 1 (keeps all)")
        if self.top_p == 0:
            raise ValueError("top_p is 0; use a probability above 0, or temperature 0 for the most probable token")
        _check_number("min_p", self.min_p, 0, 1, "use 0 (keeps all) to 1")

    def _check_penalties(self) -> None:
        _check_number("repeat_penalty", self.repeat_penalty, 1e-3, 1e3, "use 1 for none; above 1 discourages")
        _check_number("presence_penalty", self.presence_penalty, -1e3, 1e3, "use 0 for none; above 0 discourages")
        _check_number("frequency_penalty", self.frequency_penalty, -1e3, 1e3, "use 0 for none; above 0 discourages")
        _check_count("penalty_last_n", self.penalty_last_n, -1, "use a number of tokens, 0 for none, -1 for all")

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise ValueError(f"logit_bias is {self.logit_bias!r}; use a mapping from token id to bias")
        for token, bias in self.logit_bias.items():
            _check_count("a token id in logit_bias", token, 0, "use ids of the model's vocabulary")
            if bias != -math.inf:
                _check_number(f"logit_bias of token {token}", bias, -1e6, 1e6, "use a finite number, or -inf to ban it")

    def _check_constraint(self) -> None:
        if self.grammar is not None and self.json_schema is not None:
            raise ValueError("grammar and json_schema are both given; use one of them")
        if self.grammar is not None and (not isinstance(self.grammar, str) or not self.grammar.strip()):
            raise ValueError(f"grammar is {self.grammar!r}; use the text of a GBNF grammar, or None")
        if isinstance(self.json_schema, str):
            try:
                json.loads(self.json_schema)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"json_schema is not JSON ({error}); use a JSON schema, or None") from None
        elif self.json_schema is not None and not isinstance(self.json_schema, Mapping):
            raise ValueError(f"json_schema is {self.json_schema!r}; use JSON text, a mapping, or None")

    def _check_ends(self) -> None:
        if self.max_tokens is not None:
            _check_count("max_tokens", self.max_tokens, 1, "use a positive integer, or None for no limit")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for text in stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop holds {text!r}; use strings of at least one character")
        stop_token_ids = tuple(self.stop_token_ids)
        for token in stop_token_ids:
            _check_count("a token id in stop_token_ids", token, 0, "use ids of the model's vocabulary")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", stop_token_ids)
