from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiny import EOS, N_VOCAB, make_head, make_recurrent, make_target

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.drafter import Drafter
from eagle_edge.engine import Completion, Engine
from eagle_edge.errors import ContextFullError, GrammarError, NativeError, NoTokenLeftError, PairError
from eagle_edge.sampling import Sampler
from eagle_edge.tree import Tree

pytestmark = pytest.mark.native

PLAIN = DraftParams(total=1)
TREES = [DraftParams.chain(n) for n in (1, 2, 4, 8)] + [DraftParams(1 + 4 * width, 4, width) for width in (1, 2, 4)]
LARGEST = DraftParams(60, 7, 10)


@pytest.fixture(scope="module")
def engine(tiny_target: Path, tiny_head: Path) -> Iterator[Engine]:
    with Engine(tiny_target, tiny_head, TargetParams(n_ctx=512, n_batch=64, n_threads=2), exact="strict") as engine:
        yield engine


class StandIn:
    """A draft that knows the future: ``offset`` 0 proposes the text's own next tokens, 1 never does."""

    def __init__(self, prompt: Sequence[int], text: Sequence[int], offset: int = 0, mixed: bool = False) -> None:
        self.text = [*prompt, *text]
        self.offset, self.mixed, self.round = offset, mixed, 0
        self.at = 0

    @property
    def n_pairs(self) -> int:
        return self.at

    def extend(self, next_tokens: Sequence[int], taps: Any, *, last: bool = True) -> None:
        self.at += len(next_tokens)

    def rewind(self, n_pairs: int) -> None:
        self.at = n_pairs

    def set_threads(self, n_threads: int) -> None: ...

    def propose(self, root: int, params: DraftParams, room: int, *_: Any) -> Tree:
        self.round += 1
        offset = self.round % 2 if self.mixed else self.offset
        future = np.array(self.text[self.at + 1 : self.at + 1 + min(params.depth + 1, room)], np.int32)
        tokens, parent = [root], [-1]
        for depth, token in enumerate(future):
            above = 0 if depth == 0 else len(tokens) - params.top_k
            for sibling in range(params.top_k):  # the text's own token is the first sibling
                tokens.append((int(token) + offset + sibling) % N_VOCAB)
                parent.append(above)
        n = min(len(tokens), params.total)
        return Tree(np.array(tokens[:n], np.int32), np.array(parent[:n], np.int32), np.zeros(n, np.float32))


def fresh(engine: Engine, prompt: Sequence[int] | str, params: SamplingParams, draft: DraftParams) -> Completion:
    engine.reset()
    return engine.complete(prompt, params, draft)


def with_stand_in(
    engine: Engine, stand_in: StandIn, params: SamplingParams, draft: DraftParams, prompt: list[int]
) -> Completion:
    real = engine.drafter
    engine.reset()
    stand_in.rewind(0)
    engine.drafter = Drafter(stand_in, draft)  # type: ignore[arg-type]
    try:
        return engine.complete(prompt, params, draft)
    finally:
        engine.drafter = real
        engine.reset()


def prompts(n: int, shortest: int = 3, longest: int = 200) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(4, 260, rng.integers(shortest, longest + 1)).tolist() for _ in range(n)]


@pytest.mark.parametrize("prompt", prompts(20), ids=lambda prompt: f"{len(prompt)}tokens")
def test_greedy_text_does_not_depend_on_the_draft(engine: Engine, prompt: list[int]) -> None:
    """Head, perfect, hopeless and alternating drafts, as chains and trees, give the plain ids."""
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    plain = fresh(engine, prompt, params, PLAIN)
    assert len(plain.token_ids) == 200
    for draft in TREES:
        assert plain.token_ids == fresh(engine, prompt, params, draft).token_ids
    for draft in TREES[len(prompt) % 2 :: 2]:
        right = with_stand_in(engine, StandIn(prompt, plain.token_ids), params, draft, prompt)
        wrong = with_stand_in(engine, StandIn(prompt, plain.token_ids, 150), params, draft, prompt)
        mixed = with_stand_in(engine, StandIn(prompt, plain.token_ids, 150, mixed=True), params, draft, prompt)
        assert plain.token_ids == right.token_ids == wrong.token_ids == mixed.token_ids
        assert wrong.stats.draft_n_accepted == 0 < mixed.stats.draft_n_accepted < right.stats.draft_n_accepted
        assert right.stats.tau > 0.9 * min(draft.depth + 2, 1 + (draft.total - 1) / draft.top_k)


def readable_text(engine: Engine, at: int) -> tuple[list[int], Completion]:
    """A prompt whose text has two ASCII tokens from number ``at`` on, and that text."""
    for first in range(4, 260):
        free = fresh(engine, [first, 31, 32], SamplingParams(max_tokens=40, ignore_eos=True), PLAIN)
        if b"".join(engine.target.piece(token) for token in free.token_ids[at - 1 : at + 1]).isascii():
            return [first, 31, 32], free
    raise AssertionError("no prompt gives two ASCII tokens there")


@pytest.mark.parametrize("at", [1, 3, 9])
@pytest.mark.parametrize("kind", ["end", "stop token", "stop string"])
def test_stops_cut_exactly_there(engine: Engine, kind: str, at: int) -> None:
    """A stop at the first, third or last token of a round ends the text there, with the counts of the kept tokens."""
    prompt, free = readable_text(engine, at)
    token = free.token_ids[at - 1]
    if kind == "stop string":
        stop = b"".join(engine.target.piece(token) for token in free.token_ids[at - 1 : at + 1]).decode()
        params = SamplingParams(max_tokens=40, ignore_eos=True, stop=(stop,))
    elif kind == "stop token":
        params = SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(token,))
    else:
        params = SamplingParams(max_tokens=40, logit_bias={EOS: 0.0})
    plain = fresh(engine, prompt, params, PLAIN)
    right = with_stand_in(engine, StandIn(prompt, free.token_ids), params, DraftParams.chain(8), prompt)
    assert (plain.token_ids, plain.text, plain.finish_reason) == (right.token_ids, right.text, right.finish_reason)
    assert right.stats.generated_n == len(right.token_ids)
    if kind != "end":
        first = free.token_ids.index(token) + 1
        assert right.finish_reason == "stop"
        assert len(right.token_ids) <= first
    again = engine.complete([*prompt, *right.token_ids, 5], SamplingParams(max_tokens=5), PLAIN)
    assert (
        again.token_ids == fresh(engine, [*prompt, *right.token_ids, 5], SamplingParams(max_tokens=5), PLAIN).token_ids
    )


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 9])
def test_max_tokens_is_exact(engine: Engine, max_tokens: int) -> None:
    """However deep the draft, no token more than asked for is kept."""
    prompt = [40, 41, 42, 43]
    free = fresh(engine, prompt, SamplingParams(max_tokens=20, ignore_eos=True), PLAIN)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    out = with_stand_in(engine, StandIn(prompt, free.token_ids), params, DraftParams.chain(8), prompt)
    assert out.token_ids == free.token_ids[:max_tokens]
    assert (out.finish_reason, out.stats.generated_n) == ("length", max_tokens)
    assert out.stats.rounds + out.stats.draft_n_accepted == max_tokens


def test_stop_wins_over_length_when_both_fit(engine: Engine) -> None:
    """The last allowed token that is also a stop token ends with the reason stop."""
    free = fresh(engine, [50, 51], SamplingParams(max_tokens=4, ignore_eos=True), PLAIN)
    params = SamplingParams(max_tokens=4, ignore_eos=True, stop_token_ids=(free.token_ids[-1],))
    assert fresh(engine, [50, 51], params, LARGEST).finish_reason == "stop"


@pytest.mark.parametrize("n", [1, 31, 32, 33, 63, 64, 65, 129, 400])
def test_prompts_across_batch_borders(engine: Engine, tiny_head: Path, n: int) -> None:
    """Prompts around multiples of the batch give the ids and the acceptance of one big batch."""
    prompt = np.random.default_rng(n).integers(4, 260, n).tolist()
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    small = fresh(engine, prompt, params, LARGEST)
    loading = TargetParams(n_ctx=512, n_batch=512, n_threads=2)
    with Engine(engine.target.path, tiny_head, loading, exact="strict") as big:
        whole = big.complete(prompt, params, LARGEST)
    assert small.token_ids == whole.token_ids
    assert abs(small.stats.draft_n_accepted - whole.stats.draft_n_accepted) <= 1  # other batch, other last bits


@pytest.mark.parametrize("n", [1, 56, 62, 63, 64, 65, 200])
def test_the_edge_of_the_context(tiny_target: Path, tiny_head: Path, n: int) -> None:
    """A draft is clipped to the room left; a prompt that leaves none is refused with both numbers."""
    prompt = np.random.default_rng(n).integers(4, 260, n).tolist()
    loading, chain = TargetParams(n_ctx=64, n_threads=2), DraftParams.chain(16)
    with Engine(tiny_target, tiny_head, loading, draft_params=chain, exact="strict") as engine:
        params = SamplingParams(ignore_eos=True)
        if n >= 64:
            with pytest.raises(ContextFullError, match=rf"{n} tokens and the context 64"):
                engine.complete(prompt, params)
        else:
            drafted, plain = fresh(engine, prompt, params, chain), fresh(engine, prompt, params, PLAIN)
            assert drafted.token_ids == plain.token_ids
            assert (drafted.finish_reason, len(drafted.token_ids)) == ("length", 64 - n)
        assert (
            len(fresh(engine, [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True), LARGEST_CHAIN).token_ids) == 4
        )


LARGEST_CHAIN = DraftParams.chain(16)


@pytest.mark.parametrize("draft", [DraftParams.chain(4), DraftParams(16, 3, 4), LARGEST])
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_one_seed_gives_one_text_with_any_draft(engine: Engine, temperature: float, draft: DraftParams) -> None:
    """Filters and sampling draw the same tokens whatever is drafted; another seed draws others."""
    texts = []
    for seed in (1, 2):
        params = SamplingParams(temperature=temperature, top_k=40, top_p=0.9, min_p=0.01, seed=seed, max_tokens=60)
        plain = fresh(engine, [9, 8, 7, 6], params, PLAIN)
        assert plain.token_ids == fresh(engine, [9, 8, 7, 6], params, draft).token_ids
        texts.append(plain.token_ids)
    assert texts[0] != texts[1]


@pytest.mark.parametrize(("rule", "draft"), [("siblings", DraftParams(9, 2, 3)), ("rejection", DraftParams.chain(2))])
def test_published_rules_sample_the_targets_distribution(tmp_path: Path, rule: str, draft: DraftParams) -> None:
    """Two tokens drafted and verified by the published rules are distributed as plain ones (chi-square)."""
    target = make_target(tmp_path / "t.gguf", sharpness=2.0)
    head = make_head(tmp_path / "h.gguf")
    common: dict[str, Any] = {"temperature": 0.9, "top_k": 8, "top_p": 0.95, "max_tokens": 2, "ignore_eos": True}
    n, counts = 2500, (Counter[tuple[int, ...]](), Counter[tuple[int, ...]]())
    with Engine(target, head, TargetParams(n_ctx=64, n_threads=1)) as engine:
        for seed in range(n):
            counts[0][engine.complete([5, 6, 7], SamplingParams(seed=seed, **common), PLAIN).token_ids] += 1
            params = SamplingParams(seed=seed + n, rule=rule, **common)
            counts[1][engine.complete([5, 6, 7], params, draft).token_ids] += 1
    frequent = [pair for pair, count in (counts[0] + counts[1]).items() if count >= 20]
    table = [[*(c[pair] for pair in frequent), n - sum(c[pair] for pair in frequent)] for c in counts]
    if table[0][-1] + table[1][-1] == 0:
        table = [row[:-1] for row in table]
    assert len(frequent) > 5
    assert stats.chi2_contingency(table).pvalue > 0.001


@pytest.mark.parametrize("draft", [DraftParams.chain(2), LARGEST])
def test_fixed_trees_guess_with_the_targets_noise(
    engine: Engine, draft: DraftParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every level is ranked under temperature times the noise of its position, within min-p; none at temperature 0."""
    assert engine.drafter.draft is not None
    head = engine.drafter.draft
    given: list[npt.NDArray[np.float32] | None] = []
    reaches: set[float] = set()
    perturb = head.perturb

    def noted(noise: npt.NDArray[np.float32] | None, *reach: float) -> None:
        given.append(None if noise is None else noise.copy())
        reaches.update(reach)
        perturb(noise, *reach)

    monkeypatch.setattr(head, "perturb", noted)
    prompt = prompts(1)[0]
    fresh(engine, prompt, SamplingParams(max_tokens=12, temperature=0.0), draft)
    assert not given
    params = SamplingParams(max_tokens=12, temperature=0.6, seed=3, min_p=0.1)
    text = fresh(engine, prompt, params, draft).token_ids
    sampler = Sampler(params, N_VOCAB)
    assert given[-1] is None
    assert reaches.pop() == pytest.approx(0.6 * (1 - np.log(0.1)))
    assert not reaches
    for depth in (0, 1):
        noise = given[depth]
        assert noise is not None
        np.testing.assert_allclose(noise, 0.6 * sampler.gumbel(head.vocab, len(prompt) + depth), atol=1e-5)
    assert text == fresh(engine, prompt, params, PLAIN).token_ids


def test_penalties_bias_and_logprobs_are_those_of_plain_decoding(engine: Engine) -> None:
    """Position by position, drafted values equal plain ones; a banned token never appears."""
    prompt = [70, 71, 72, 73]
    free = fresh(engine, prompt, SamplingParams(max_tokens=30, ignore_eos=True), PLAIN)
    banned = Counter(free.token_ids).most_common(1)[0][0]
    params = SamplingParams(
        max_tokens=60, ignore_eos=True, n_logprobs=5, repeat_penalty=1.3, logit_bias={banned: -np.inf}, min_p=0.05
    )
    plain, drafted = fresh(engine, prompt, params, PLAIN), fresh(engine, prompt, params, LARGEST)
    assert plain.token_ids == drafted.token_ids
    assert banned not in drafted.token_ids
    assert len(drafted.logprobs) == len(drafted.token_ids)
    for one, other in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_grammar_rules_the_text_while_the_draft_proposes_otherwise(engine: Engine) -> None:
    """Every emitted token obeys the schema; a broken grammar is one clear error and the next request works."""
    properties = {"c": {"enum": ["red", "blue"]}}
    schema = {"type": "object", "properties": properties, "required": ["c"], "additionalProperties": False}
    params = SamplingParams(max_tokens=60, json_schema=schema)
    plain, drafted = fresh(engine, [5, 6], params, PLAIN), fresh(engine, [5, 6], params, LARGEST)
    assert plain.text == drafted.text
    assert drafted.text.replace(" ", "").replace("\n", "") in ('{"c":"red"}', '{"c":"blue"}')
    with pytest.raises(GrammarError):
        engine.complete([5, 6], SamplingParams(grammar='root ::= "a" undefined-rule'))
    with pytest.raises(NoTokenLeftError):
        engine.complete([5, 6], SamplingParams(logit_bias=dict.fromkeys(range(N_VOCAB), -np.inf)))
    assert fresh(engine, [5, 6], SamplingParams(max_tokens=3, ignore_eos=True), LARGEST).stats.generated_n == 3


def test_a_conversation_reuses_its_prefix(engine: Engine) -> None:
    """The second turn evaluates only what is new, and its text is that of an empty cache."""
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    first = fresh(engine, [10, 11, 12], params, LARGEST)
    longer = [10, 11, 12, *first.token_ids, 20, 21, 22]
    second = engine.complete(longer, params, LARGEST)
    assert second.stats.reused_n >= 3 + 20 - 1
    assert second.token_ids == fresh(engine, longer, params, LARGEST).token_ids
    other = [10, 11, 99, 98]
    assert engine.complete(other, params, LARGEST).token_ids == fresh(engine, other, params, LARGEST).token_ids


def test_acceptance_does_not_suffer_from_reuse(engine: Engine) -> None:
    """The head's cache after rounds and reuse holds the pairs a fresh prefill gives: same drafts, same counters."""
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    first = fresh(engine, [10, 11, 12], params, LARGEST)
    longer = [10, 11, 12, *first.token_ids, 20, 21, 22]
    reused = engine.complete(longer, params, LARGEST).stats
    whole = fresh(engine, longer, params, LARGEST).stats
    assert abs(reused.rounds - whole.rounds) <= 1
    assert abs(reused.draft_n_accepted - whole.draft_n_accepted) <= 1


def test_accepted_tokens_leave_the_heads_cache_as_a_prefill_would(engine: Engine) -> None:
    """After rounds that accepted drafts, the head's state is that of true features of every token."""
    prompt = [10, 11, 12]
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    free = fresh(engine, prompt, params, PLAIN)
    assert engine.draft is not None
    head = engine.draft
    future = StandIn(prompt, free.token_ids)

    class Prophet:
        """Proposes the true next tokens; everything else is the real head."""

        def __getattr__(self, name: str) -> Any:
            return getattr(head, name)

        def propose(self, root: int, params: DraftParams, room: int, *_: Any) -> Tree:
            future.at = head.n_pairs
            return future.propose(root, params, room)

    engine.reset()
    real = engine.drafter
    engine.drafter = Drafter(Prophet(), DraftParams.chain(4))  # type: ignore[arg-type]
    try:
        out = engine.complete(prompt, params, DraftParams.chain(4))
        assert out.stats.draft_n_accepted > 15
        after_rounds = head.hidden(-1)
    finally:
        engine.drafter = real
    n_pairs = head.n_pairs
    engine.reset()
    ids = [*prompt, *out.token_ids]
    for start in range(0, n_pairs, 64):
        end = min(start + 64, n_pairs)
        taps = engine.target.prefill(ids[start:end]).taps(range(end - start))
        head.extend(ids[start + 1 : end + 1], taps)
    np.testing.assert_allclose(after_rounds, head.hidden(-1), atol=2e-2)
    engine.reset()


def test_closing_a_generation_early_leaves_the_engine_usable(engine: Engine) -> None:
    """After any number of steps the iterator can be dropped; the next text is unharmed."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    expected = fresh(engine, [60, 61, 62], params, PLAIN).token_ids
    for n_steps in (0, 1, 5):
        engine.reset()
        steps = engine.generate([33, 34, 35], params, LARGEST)
        for _ in range(n_steps):
            next(steps)
        steps.close()
        assert engine.complete([60, 61, 62], params, LARGEST).token_ids == expected


def test_an_interrupt_in_any_verb_leaves_the_engine_usable(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two native calls costs the current answer and nothing else."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    expected = fresh(engine, [60, 61, 62], params, PLAIN).token_ids
    assert engine.draft is not None
    for owner, verb in ((engine.target, "eval_tree"), (engine.target, "commit"), (engine.draft, "extend")):
        engine.reset()
        real, calls = getattr(owner, verb), [0]

        def interrupted(*args: Any, real: Any = real, calls: list[int] = calls, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == 4:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(owner, verb, interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.complete([60, 61, 62], params, LARGEST)
        assert engine.complete([60, 61, 62], params, LARGEST).token_ids == expected


def test_counters_are_repeatable(tiny_target: Path, tiny_head: Path) -> None:
    """The same prompt and tree on engines built anew give the same counters every time."""
    seen = set()
    for _ in range(5):
        with Engine(tiny_target, tiny_head, TargetParams(n_ctx=256, n_threads=2)) as engine:
            out = engine.complete([1, 2, 3, 4], SamplingParams(max_tokens=30, ignore_eos=True), LARGEST)
            seen.add((out.token_ids, out.stats.rounds, out.stats.draft_n, out.stats.draft_n_accepted))
            assert out.stats.rounds + out.stats.draft_n_accepted == out.stats.generated_n == 30
    assert len(seen) == 1


def test_a_recurrent_target_refuses_a_head(tmp_path: Path, tiny_head: Path) -> None:
    """Mamba decodes plainly; with a head it is refused with the reason before anything is generated."""
    path = make_recurrent(tmp_path / "mamba.gguf")
    with pytest.raises(PairError):
        Engine(path, tiny_head)
    with Engine(path, target_params=TargetParams(n_ctx=64)) as engine:
        assert engine.complete([1, 2, 3], SamplingParams(max_tokens=8, ignore_eos=True)).stats.generated_n == 8
        assert engine.complete([1, 2, 9], SamplingParams(max_tokens=8, ignore_eos=True)).stats.generated_n == 8


def test_a_head_that_fails_on_the_way_costs_no_text(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the head's numbers break in the middle, the text goes on plainly and the statistics say why."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    expected = fresh(engine, [60, 61, 62], params, PLAIN).token_ids
    assert engine.draft is not None
    for verb in ("propose", "extend"):
        engine.reset()
        real, calls = getattr(engine.draft, verb), [0]

        def broken(*args: Any, real: Any = real, calls: list[int] = calls, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == 3:
                raise NativeError("the head's logits are not finite")
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(engine.draft, verb, broken)
            out = engine.complete([60, 61, 62], params, LARGEST)
        assert out.token_ids == expected
        assert out.stats.head_error == "the head's logits are not finite"
        assert engine.complete([60, 61, 62], params, LARGEST).token_ids == expected


def test_automatic_drafting_gives_the_plain_text(engine: Engine) -> None:
    """With trees sized as they pay, from head and repetitions, every prompt and temperature gives the plain ids."""
    for number, prompt in enumerate(prompts(6, longest=60)):
        for temperature in (0.0, 0.8):
            params = SamplingParams(max_tokens=80, ignore_eos=True, temperature=temperature, seed=number)
            plain = fresh(engine, prompt, params, PLAIN)
            automatic = fresh(engine, prompt, params, DraftParams.auto())
            assert plain.token_ids == automatic.token_ids
    assert engine.drafter.policy.n_rounds > 100


@pytest.mark.parametrize("rule", ["siblings", "rejection"])
def test_automatic_drafting_serves_the_published_rules(engine: Engine, rule: str) -> None:
    """The other rules take automatic trees and chains too, and end where they should."""
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.9, seed=3, rule=rule)
    out = fresh(engine, [5, 6, 7], params, DraftParams.auto())
    assert (len(out.token_ids), out.finish_reason) == (60, "length")


def test_a_text_that_repeats_itself_needs_no_head(tiny_target: Path) -> None:
    """Without a head repetitions are drafted from the text, which stays plain; a plain engine drafts nothing."""
    phrase = np.random.default_rng(2).integers(4, 260, 12).tolist()
    params = SamplingParams(max_tokens=60, logit_bias={}, ignore_eos=True)
    loading = TargetParams(n_ctx=512, n_threads=1)
    with Engine(tiny_target, None, loading, draft_params=PLAIN) as plain, Engine(tiny_target, None, loading) as engine:
        for _ in range(8):  # the first evaluations learn what rows cost
            expected, out = plain.complete(phrase * 4, params), engine.complete(phrase * 4, params)
            assert expected.token_ids == out.token_ids
            assert expected.stats.draft_n == 0
            engine.reset()


def test_what_was_learnt_is_kept_between_engines(tiny_target: Path, tiny_head: Path) -> None:
    """An engine that is closed leaves its costs to the next one for the same files, and broken files are ignored."""
    loading, params = TargetParams(n_ctx=192, n_threads=1), SamplingParams(max_tokens=30, ignore_eos=True)
    with Engine(tiny_target, tiny_head, loading, exact="strict") as engine:
        engine.complete([1, 2, 3], params)
        n_rounds = engine.drafter.policy.n_rounds
    assert n_rounds > 0
    known = engine.drafter.policy.costs.to_json()
    with Engine(tiny_target, tiny_head, loading, exact="strict") as again:
        assert again.drafter.policy.costs.to_json() == known
        kept = again.learnt_file
    assert kept is not None
    kept.write_text("{", encoding="utf-8")
    with Engine(tiny_target, tiny_head, loading, exact="strict") as other:
        assert other.complete([1, 2, 3], params).stats.generated_n == 30


def test_prompts_that_cannot_be_are_refused(engine: Engine) -> None:
    """Empty prompts and foreign ids are ValueErrors with the reason."""
    with pytest.raises(ValueError, match="empty"):
        engine.complete([])
    with pytest.raises(ValueError, match="vocabulary of 320"):
        engine.complete([1, 320])


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(3, 259), min_size=1, max_size=30),
    total=st.integers(2, 30),
    depth=st.integers(1, 6),
    top_k=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 0.8]),
    penalty=st.sampled_from([1.0, 1.2]),
    n=st.integers(1, 40),
)
def test_any_setting_gives_the_plain_text(
    engine: Engine, prompt: list[int], total: int, depth: int, top_k: int, temperature: float, penalty: float, n: int
) -> None:
    """Drafted text equals plain text for random prompts, trees and sampling settings, caches reused in between."""
    draft = DraftParams(min(total, 1 + top_k + depth * top_k**2), depth, top_k)
    params = SamplingParams(max_tokens=n, temperature=temperature, repeat_penalty=penalty, seed=7)
    drafted = engine.complete(prompt, params, draft)
    plain = engine.complete(prompt, params, PLAIN)
    assert (drafted.token_ids, drafted.text, drafted.finish_reason) == (
        plain.token_ids,
        plain.text,
        plain.finish_reason,
    )
