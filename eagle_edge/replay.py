"""A recorded run, replayed on another machine's costs: what the same head and the same policy would do there.

A record holds a text and, at every position of the answer, the wide tree that the head drafts there. The text never
depends on the draft, so any policy's walk through it can be replayed exactly; only time is simulated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .asking import Listener
from .backlog import Backlog
from .config import DraftParams, SamplingParams
from .engine import Engine
from .errors import FileFormatError
from .expand import Children, expand
from .policy import Policy
from .tree import Tree, chain

__all__ = [
    "CURVES",
    "SWEEP",
    "Machine",
    "Outcome",
    "Record",
    "compare",
    "load_curve",
    "load_records",
    "record",
    "replay",
    "save_records",
]

PLAIN = DraftParams(total=1)
#: Fixed settings to compare with.
SWEEP = (
    *(DraftParams.chain(n) for n in (1, 2, 3, 4, 6, 8)),
    *(DraftParams(*sizes) for sizes in ((4, 0, 3), (4, 1, 2), (8, 4, 4), (16, 7, 10), (24, 7, 10), (60, 7, 10))),
)
_WIDE = DraftParams(total=100, depth=7, top_k=10)
_NEVER = -30.0  # log-probability of children that the record does not hold


@dataclass(frozen=True, slots=True)
class Record:
    """One text.

    Attributes:
        ids: prompt and answer.
        n_prompt: tokens of the prompt.
        trees: for every position from the last of the prompt on tokens, parents and path log-probabilities.
    """

    ids: list[int]
    n_prompt: int
    trees: list[tuple[list[int], list[int], list[float]]]

    def tree(self, n_past: int) -> Tree:
        """The tree drafted after ``n_past`` + 1 tokens."""
        tokens, parent, logprob = self.trees[n_past + 1 - self.n_prompt]
        return Tree(np.array(tokens, np.int32), np.array(parent, np.int32), np.array(logprob, np.float32))


def record(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> Record:
    """Generate plainly, then let the head draft at every position of the answer."""
    draft = engine.draft
    if draft is None:
        raise ValueError("there is nothing to record without a head")
    engine.reset()
    answer = engine.complete(prompt, params, DraftParams(total=1)).token_ids
    ids, trees = [*prompt, *answer], []
    engine.reset()
    for start in range(0, len(ids) - 1, engine.target.n_prefill):
        end = min(start + engine.target.n_prefill, len(ids) - 1)
        taps = engine.target.prefill(ids[start:end]).taps(range(end - start))
        for at in range(start, end):
            draft.extend(ids[at + 1 : at + 2], taps[at - start : at - start + 1])
            if at + 2 >= len(prompt):
                tree = draft.propose(ids[at + 1], _WIDE, len(ids))
                scores = [round(float(score), 4) for score in tree.logprob]
                trees.append((tree.tokens.tolist(), tree.parent.tolist(), scores))
    engine.reset()
    return Record(ids, len(prompt), trees)


def save_records(path: Path, records: Iterable[Record]) -> None:
    """One line of JSON for each text."""
    with path.open("w", encoding="utf-8") as file:
        for one in records:
            file.write(json.dumps(asdict(one)) + "\n")


def load_records(path: Path) -> list[Record]:
    """What ``save_records`` wrote.

    Raises:
        FileFormatError: it is something else.
    """
    try:
        return [Record(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise FileFormatError(f"{path}: no recorded run ({error}); make one with eagle-edge bench --record") from None


@dataclass
class Machine:
    """What calls cost, in milliseconds by rows, and the time.

    Attributes:
        load: multiplies everything, by the time.
        ms: the time.
    """

    verify: Callable[[int], float]
    level: Callable[[int], float] = lambda n: 0.3 + 0.03 * n
    extend: Callable[[int], float] = lambda n: 0.35 + 0.02 * n
    load: Callable[[float], float] = lambda ms: 1.0
    ms: float = 0.0

    def spend(self, ms: float) -> None:
        """Let a call of ``ms`` pass."""
        self.ms += ms * self.load(self.ms)

    def clock(self) -> float:
        """Seconds."""
        return self.ms / 1e3


CURVES = Path(__file__).parent / "curves"  # made from public measurements; each names its source


def load_curve(curve: Path) -> Machine:
    """A machine from a JSON object with "verify", "level" and "extend": [rows, milliseconds] pairs, rows ascending.

    Between the rows given, costs lie on a line; beyond the last it goes on with the last slope. Where nothing is known
    of a head, "draft_of_verify" takes its calls for that share of the target's.

    Args:
        curve: a file, or the name of one in ``CURVES``.

    Raises:
        FileFormatError: it is something else.
    """
    path = curve if curve.exists() else CURVES / f"{curve}.json"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in CURVES.glob("*.json")))
        raise FileFormatError(f"{curve}: no such file, and none of the curves that come along: {known}")
    try:
        curves = json.loads(path.read_text(encoding="utf-8"))
        verify = _interpolated(curves["verify"])
        if "draft_of_verify" in curves:
            share = float(curves["draft_of_verify"])
            return Machine(verify, lambda n: share * verify(n), lambda n: share * verify(n))
        return Machine(verify, _interpolated(curves["level"]), _interpolated(curves["extend"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileFormatError(f'{path}: no cost curves ({error!r}); needed are "verify", "level", "extend"') from None


def _interpolated(points: list[list[float]]) -> Callable[[int], float]:
    rows, ms = np.array(points, float).T
    if len(rows) < 2 or (np.diff(rows) <= 0).any() or (ms <= 0).any():
        raise ValueError("a curve needs two points or more, rows ascending, times positive")
    slope = (ms[-1] - ms[-2]) / (rows[-1] - rows[-2])
    return lambda n: float(np.interp(n, rows, ms) + max(0.0, n - rows[-1]) * slope)


class _RecordedHead:
    """Says what the recorded head said, and takes the machine's time for it."""

    def __init__(self, text: Record, machine: Machine) -> None:
        self._text, self._machine = text, machine
        self.n_pairs = text.n_prompt - 2
        self._nodes: list[int] = []  # evaluated nodes of this round, as rows of the recorded tree; -1 if not in it

    def extend(self, next_tokens: Sequence[int], taps: Any, *, last: bool = True) -> None:
        self._machine.spend(self._machine.extend(len(next_tokens)))
        self.n_pairs += len(next_tokens)
        self._nodes = []
        self._tree = self._text.tree(self.n_pairs)

    @property
    def first(self) -> Children:
        tokens, logprob = self._children(0, _WIDE.top_k)
        return tokens, logprob

    def level(self, tokens: Any, parents: Any, top_k: int) -> Children:
        self._machine.spend(self._machine.level(len(tokens)))
        for token, above in zip(tokens.tolist(), parents.tolist(), strict=True):
            node = 0 if above < 0 else self._nodes[above]
            found = None if node < 0 else self._tree.child(node, token)
            self._nodes.append(-1 if found is None else found)
        rows = [self._children(node, top_k) for node in self._nodes[-len(tokens) :]]
        return np.stack([ids for ids, _ in rows]), np.stack([logprob for _, logprob in rows])

    def perturb(self, noise: Any, reach: float = math.inf) -> None: ...

    def _children(self, node: int, top_k: int) -> Children:
        tokens, logprob = np.full(top_k, -1, np.int32), np.full(top_k, _NEVER, np.float32)
        if node >= 0:
            children = np.flatnonzero(self._tree.parent == node)[:top_k]
            tokens[: len(children)] = self._tree.tokens[children]
            logprob[: len(children)] = self._tree.logprob[children] - self._tree.logprob[node]
        return tokens, logprob


@dataclass(frozen=True, slots=True)
class Outcome:
    """A replayed text: tokens generated, rounds, drafted nodes, and milliseconds they would take."""

    n_tokens: int
    n_rounds: int
    draft_n: int
    ms: float


def replay(text: Record, machine: Machine, how: Policy | DraftParams) -> Outcome:
    """Walk through a recorded text with a policy or a fixed tree."""
    head, ids, start = _RecordedHead(text, machine), text.ids[: text.n_prompt], machine.ms
    backlog, no_taps = Backlog(head), np.zeros((0, 1), np.float32)
    backlog.add(head.n_pairs, ids[-1:], np.zeros((1, 1), np.float32))
    n_rounds = draft_n = 0
    if isinstance(how, Policy):
        how.start()
    while len(ids) < len(text.ids):
        tree = _proposed(how, ids, len(text.ids) - len(ids) - 1, head, backlog)
        before = machine.ms
        machine.spend(machine.verify(len(tree)))
        tokens = _accepted(tree, text.ids[len(ids) :])
        if isinstance(how, Policy):
            how.observe(tokens, len(tree), machine.ms - before)
        backlog.add(len(ids) - 1, tokens, np.resize(no_taps, (len(tokens), 1)))
        ids = ids + tokens
        n_rounds, draft_n = n_rounds + 1, draft_n + len(tree) - 1
    return Outcome(len(ids) - text.n_prompt, n_rounds, draft_n, machine.ms - start)


def compare(records: Sequence[Record], machine: Machine, fixed: Sequence[DraftParams]) -> list[dict[str, Any]]:
    """Plain decoding, fixed trees and the policy on one machine: tokens per second, tau, nodes a round, best first.

    The policy walks through all texts twice; the second time counts, when it knows machine and head.
    """
    rows = []
    policy = Policy(DraftParams.auto(), machine.clock)
    for text in records:
        replay(text, machine, policy)
    settings: list[tuple[str, Policy | DraftParams]] = [("automatic", policy), ("plain", PLAIN)]
    for name, how in [*settings, *((f"{p.total}/{p.depth}/{p.top_k}", p) for p in fixed)]:
        outcomes = [replay(text, machine, how) for text in records]
        n_rounds = sum(outcome.n_rounds for outcome in outcomes)
        n_tokens = sum(outcome.n_tokens for outcome in outcomes)
        rows.append(
            {
                "draft": name,
                "tokens_per_second": round(1e3 * n_tokens / sum(outcome.ms for outcome in outcomes), 2),
                "tau": round(n_tokens / n_rounds, 3),
                "draft_n_per_round": round(sum(outcome.draft_n for outcome in outcomes) / n_rounds, 2),
            }
        )
    return sorted(rows, key=lambda row: -float(row["tokens_per_second"]))


def _proposed(how: Policy | DraftParams, ids: list[int], room: int, head: _RecordedHead, backlog: Backlog) -> Tree:
    if isinstance(how, Policy):
        return how.propose(ids, room, 1, Listener(head, backlog))
    if how.total == 1 or room <= 0:
        return chain(ids[-1], np.empty(0, np.int32))
    backlog.read()
    return expand(ids[-1], (head.first[0][: how.top_k], head.first[1][: how.top_k]), head.level, how, room)


def _accepted(tree: Tree, future: list[int]) -> list[int]:
    """The tokens of the path that agrees with the text, and one more."""
    node: int | None = 0
    tokens: list[int] = []
    while node is not None and len(tokens) < len(future):
        tokens.append(future[len(tokens)])
        node = tree.child(node, tokens[-1])
    return tokens
