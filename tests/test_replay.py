"""Recorded runs replayed on other machines' costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.engine import Engine
from eagle_edge.errors import FileFormatError
from eagle_edge.replay import CURVES, Machine, Record, compare, load_curve, load_records, record, replay, save_records


def made_up(n: int = 40) -> Record:
    """A text whose recorded trees hold its next two tokens, and beside each a wrong one."""
    ids = list(range(100, 100 + n))
    trees = []
    for at in range(1, n):
        a, b = at + 101, at + 102
        trees.append(([at + 100, a, b, 7, 8], [-1, 0, 1, 0, 1], [0.0, -0.2, -0.5, -2.0, -2.2]))
    return Record(ids, 2, trees)


@pytest.mark.parametrize(("how", "tau"), [(DraftParams(1), 1), (DraftParams.chain(1), 2), (DraftParams.chain(2), 3)])
def test_fixed_trees_walk_as_they_would(how: DraftParams, tau: int) -> None:
    """Tokens, rounds and time are those of the calls that such a generation makes."""
    machine = Machine(lambda n: 10.0 * n, level=lambda n: 2.0, extend=lambda n: 1.0)
    outcome = replay(made_up(38), machine, how)
    assert outcome.n_tokens == 36
    assert outcome.n_rounds == 36 / tau
    drafting = 1.0 + 2.0 * (how.total - 2) if tau > 1 else 0.0
    assert outcome.ms <= outcome.n_rounds * (10.0 * how.total + drafting) + 1e-6
    assert outcome.draft_n <= outcome.n_rounds * (how.total - 1)


def test_the_policy_wins_on_both_kinds_of_machine() -> None:
    """Where rows are free it drafts all there is, where they are dear it decodes plainly; it never comes last."""
    texts = [made_up(200)] * 3
    free = compare(texts, Machine(lambda n: 20.0), [DraftParams.chain(1), DraftParams.chain(2)])
    dear = compare(texts, Machine(lambda n: 20.0 * n), [DraftParams.chain(1), DraftParams.chain(2)])
    assert free[0]["draft"] in ("automatic", "3/1/1")
    assert free[-1]["draft"] == "plain"
    speed = {row["draft"]: row["tokens_per_second"] for row in dear}
    assert speed["automatic"] > 0.97 * speed["plain"]


@pytest.mark.native
def test_a_record_replays_as_the_engine_runs(tiny_target: Path, tiny_head: Path, tmp_path: Path) -> None:
    """Rounds and drafted nodes of a replayed fixed tree are those the engine counts, after a way through a file."""
    prompt, params = np.random.default_rng(1).integers(4, 260, 20).tolist(), SamplingParams(max_tokens=40)
    with Engine(tiny_target, tiny_head, TargetParams(n_ctx=256, n_threads=1)) as engine:
        save_records(tmp_path / "run.jsonl", [record(engine, prompt, params)])
        text = load_records(tmp_path / "run.jsonl")[0]
        for how in (DraftParams.chain(3), DraftParams(8, 2, 3)):
            engine.reset()
            stats = engine.complete(prompt, params, how).stats
            outcome = replay(text, Machine(lambda n: 1.0), how)
            assert abs(outcome.n_rounds - stats.rounds) <= 1
            assert abs(outcome.draft_n - stats.draft_n) <= 8


def test_curves_come_from_a_file(tmp_path: Path) -> None:
    """Costs lie on the lines between the points given, and go on with the last slope."""
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({name: [[1, 5.0], [8, 5.0], [16, 13.0]] for name in ("verify", "level", "extend")}))
    machine = load_curve(path)
    assert [machine.verify(n) for n in (1, 4, 8, 12, 20)] == pytest.approx([5, 5, 5, 9, 17])


def test_the_curves_that_come_along_are_whole() -> None:
    """Each has its hardware, its source, and costs that can be replayed; an unknown name lists them."""
    for file in CURVES.glob("*.json"):
        told = json.loads(file.read_text())
        assert told["hardware"]
        assert told["source"].startswith("https://")
        machine = load_curve(Path(file.stem))
        assert machine.verify(1) == told["verify"][0][1]
        assert machine.level(2) == pytest.approx(told["draft_of_verify"] * machine.verify(2))
    with pytest.raises(FileFormatError, match="rtx-4090-1b-q4_0"):
        load_curve(Path("abacus"))


@pytest.mark.parametrize("content", ["", "{}", '{"verify": []}', '{"verify": [[2,1],[1,2]], "level": 0, "extend": 0}'])
def test_broken_files_are_one_clear_error(tmp_path: Path, content: str) -> None:
    """Neither curves nor records that are none get further than their name and the reason."""
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match=r"broken\.json: no cost curves"):
        load_curve(path)
    path.write_text("{" + content)
    with pytest.raises(FileFormatError, match=r"broken\.json: no recorded run"):
        load_records(path)
