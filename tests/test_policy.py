"""The policy on simulated machines: against the best fixed tree, a useless head, changes of load, repetitions.

Time is simulated, so every figure is the same in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulation import N_VOCAB, SimulatedHead, Text, run

from eagle_edge.config import DraftParams
from eagle_edge.policy import Policy
from eagle_edge.replay import Machine
from eagle_edge.round import Kind

BOUNDS = DraftParams(64, 15, 10, automatic=True)
PLAIN = DraftParams(total=1)
FIXED = [PLAIN, *(DraftParams.chain(n) for n in (1, 2, 3, 4, 6))] + [
    DraftParams(total, depth, top_k)
    for total, depth, top_k in ((4, 1, 2), (4, 2, 4), (8, 2, 4), (8, 3, 2), (12, 5, 2), (16, 5, 4), (16, 7, 2))
]
CURVES: dict[str, Callable[[int], float]] = {
    "groups of four": lambda n: 4.0 + ((n + 3) // 4),
    "steep": lambda n: 4.0 + 1.5 * n,
    "flat to eight": lambda n: 20.0 + 0.4 * max(0, n - 8),
    "dear second row": lambda n: 5.0 if n == 1 else 6.5 + 0.35 * n,
}


def policy(machine: Machine) -> Policy:
    return Policy(BOUNDS, machine.clock)


@pytest.mark.parametrize("skill", [1.0, 0.6])
@pytest.mark.parametrize("curve", CURVES)
def test_it_keeps_up_with_the_best_fixed_tree(curve: str, skill: float) -> None:
    """On every shape of cost, with a text to learn from, it is within 5 % of the best of many fixed settings.

    On the average of three texts, for each of which that best is chosen with hindsight.
    """
    shares = []
    for seed in range(3):
        text = Text(skill, 3.0, seed)
        best = max(run(text, Machine(CURVES[curve]), 250, how)[0] for how in FIXED)
        machine = Machine(CURVES[curve])
        learner = policy(machine)
        run(text, machine, 400, learner)
        shares.append(run(text, machine, 250, learner)[0] / best)
    assert np.mean(shares) > 0.95


def test_it_beats_any_one_setting_over_all_machines() -> None:
    """No fixed setting does as well over the four machines together as the policy that knows none of them."""
    text = Text(0.8, 3.0)
    plain = {name: 1 / curve(1) for name, curve in CURVES.items()}
    fixed = [
        np.mean([run(text, Machine(curve), 200, how)[0] / plain[name] for name, curve in CURVES.items()])
        for how in FIXED
    ]
    ours = []
    for name, curve in CURVES.items():
        machine = Machine(curve)
        learner = policy(machine)
        run(text, machine, 300, learner)
        ours.append(run(text, machine, 200, learner)[0] / plain[name])
    assert np.mean(ours) > max(fixed)


@pytest.mark.parametrize("sharpness", [3.0, 8.0])
@pytest.mark.parametrize("curve", CURVES)
def test_a_useless_head_costs_next_to_nothing(curve: str, sharpness: float) -> None:
    """A head that is always sure and always wrong slows a text down by at most 3 % once it is known."""
    text, machine = Text(0.0, sharpness), Machine(CURVES[curve])
    learner = policy(machine)
    run(text, machine, 130, learner)
    assert run(text, machine, 600, learner)[0] > 0.97 / CURVES[curve](1)


def test_what_drafting_does_to_the_rounds_after_it_counts() -> None:
    """Where evaluations stay dearer for some rounds after the head was asked, a weak head is not asked all the time."""
    since_asked = 100

    def extend(n: int) -> float:
        nonlocal since_asked
        since_asked = 0
        return 0.35 + 0.02 * n

    def verify(n: int) -> float:
        nonlocal since_asked
        since_asked += 1
        return (5.0 + 0.3 * (n - 1)) * (1.25 if since_asked <= 8 else 1.0)

    text, machine = Text(0.3, 3.0), Machine(verify, extend=extend)
    learner = policy(machine)
    run(text, machine, 900, learner)
    assert run(text, machine, 900, learner)[0] > 0.94 / 5.0  # 0.85 where only lone rows between drafts are known


def test_it_comes_back_when_drafting_pays_again() -> None:
    """After a long text where the head was useless, one where it is good is soon drafted at full speed."""
    machine = Machine(CURVES["groups of four"])
    learner = policy(machine)
    run(Text(0.0, 4.0), machine, 600, learner)
    _, sizes = run(Text(1.0, 4.0, seed=1), machine, 600, learner)
    assert np.mean(np.array(sizes[-50:]) > 1) > 0.9


def test_verification_grown_dear_ends_drafting() -> None:
    """When trees get dear in the middle of a text, because other programs want the cores, it goes on plainly."""
    speeds = []
    for seed in range(0, 40, 10):
        machine = Machine(lambda n: 5.0 + 0.3 * n)
        learner = policy(machine)
        _, before = run(Text(0.5, 2.0, seed), machine, 300, learner)
        machine.verify = lambda n: 5.0 + 4.0 * (n - 1)
        run(Text(0.5, 2.0, seed + 1), machine, 300, learner)
        speed, after = run(Text(0.5, 2.0, seed + 2), machine, 300, learner)
        assert np.mean(before) > 2.5
        assert np.mean(after) < 1.5
        speeds.append(speed)
    assert np.mean(speeds) > 0.97 / 5.0


def test_a_machine_as_busy_for_everything_changes_no_tree() -> None:
    """A load that slows all calls down by the same factor leaves the sizes of trees about as they were."""
    sizes = []
    for load in (1.0, 5.0):
        machine = Machine(CURVES["groups of four"])
        learner = policy(machine)
        run(Text(0.8, 3.0), machine, 300, learner)
        machine.load = lambda ms, load=load: load  # type: ignore[misc]
        sizes.append(np.mean(run(Text(0.8, 3.0, seed=1), machine, 300, learner)[1]))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.25)


def test_repetitions_need_no_head() -> None:
    """A text that repeats a phrase is drafted from itself, several tokens a round, with no head at all."""
    machine = Machine(CURVES["groups of four"])
    text = Text(1.0, 3.0, phrase=40)
    speed, sizes = run(text, machine, 400, policy(machine), with_head=False)
    assert speed > 2.5 / CURVES["groups of four"](1)
    assert max(sizes) > 8


def test_repetitions_are_taken_in_pieces_wherever_they_lie() -> None:
    """How much of a repetition is verified at a time depends on it, not on how slow the rest of the text is."""
    means = []
    for gap in (2, 30):
        machine, sizes = Machine(CURVES["groups of four"]), []
        learner = policy(machine)
        for seed in range(4):
            learner.start()
            sizes += run(Text(0.0, 2.0, seed, phrase=60, gap=gap), machine, 600, learner, with_head=False)[1]
        repeated = np.array(sizes)[np.array(sizes) > 4]
        assert len(repeated) > 30
        means.append(np.mean(repeated))
    assert means[1] == pytest.approx(means[0], rel=0.2)


def test_repetitions_do_not_make_time_dear_elsewhere() -> None:
    """Rounds inside a repetition, however fast, do not count in the speed that rounds outside are measured by."""
    curve = CURVES["groups of four"]
    machine = Machine(curve)
    learner = policy(machine)
    speed, sizes = run(Text(0.0, 2.0, phrase=60, gap=10), machine, 600, learner, with_head=False)
    assert speed * curve(1) > 1.2
    assert max(sizes) > 8
    tokens, time = learner.to_json()["pace"]
    assert tokens / time == pytest.approx(1.0, rel=0.02)


def test_repetitions_add_to_a_head() -> None:
    """Where the text repeats itself, a head and the suffixes together beat the head alone by half."""
    curve = CURVES["groups of four"]
    text = Text(0.5, 2.0, phrase=40)
    machine = Machine(curve)
    alone = max(run(text, Machine(curve), 300, how)[0] for how in FIXED)
    assert run(text, machine, 300, policy(machine))[0] > 1.5 * alone


def test_no_node_lies_deeper_than_the_room() -> None:
    """Trees end where the context does, suffixes included; without room there is only the root."""
    machine = Machine(CURVES["flat to eight"])
    learner = policy(machine)
    text = Text(1.0, 8.0, phrase=10)
    run(text, machine, 200, learner)
    for room in range(5):
        tree = learner.propose(text.ids[:100], room, 1)
        assert tree.depth().max() <= room
    assert len(learner.propose(text.ids[:100], 0, 1)) == 1


def test_bounds_are_kept() -> None:
    """No tree has more nodes than the settings allow, however cheap they are."""
    machine = Machine(lambda n: 20.0, level=lambda n: 0.01)
    learner = Policy(DraftParams(9, 3, 4, automatic=True), machine.clock)
    _, sizes = run(Text(1.0, 6.0, phrase=50), machine, 200, learner)
    assert max(sizes) == 9


def test_what_was_learnt_is_worth_a_text() -> None:
    """A policy restored from its JSON starts where the other stopped: a useless head is not tried out again."""
    curve = CURVES["steep"]
    machine = Machine(curve)
    learner = policy(machine)
    run(Text(0.0, 6.0), machine, 400, learner)
    again = policy(machine)
    assert again.restore(learner.to_json())
    assert run(Text(0.0, 6.0, seed=1), machine, 130, again)[0] > 0.97 / curve(1)


@pytest.mark.parametrize(
    "change", [{"version": 0}, {"costs": []}, {"chances": [1, 2]}, {"pace": [0]}, {"plain": "x"}, {"same_noise": None}]
)
def test_a_foreign_state_is_ignored(change: dict[str, Any]) -> None:
    """A state of another version or with broken parts leaves the policy as it was."""
    machine = Machine(CURVES["steep"])
    learner = policy(machine)
    before = learner.to_json()
    assert not learner.restore({**before, **change})
    assert not learner.restore({})
    assert learner.to_json() == before


def test_sampled_texts_are_judged_apart() -> None:
    """What guesses are worth where the target takes the likeliest token says nothing of texts it draws."""
    learner = policy(Machine(CURVES["steep"]))
    before = learner.to_json()["chances"]
    for _ in range(40):
        learner.propose([1, 2, 3, 1, 2, 3, 1, 2], 8, 1, drawn=False)
        learner.observe([3], 2, 5.0)
    greedy, drawn = learner.to_json()["chances"]
    assert drawn == before[True]
    assert greedy != before[False]


def test_sampled_chains_have_the_length_that_pays() -> None:
    """For the rejection rule the length of a chain follows how often its tokens were kept."""
    learner = policy(Machine(CURVES["steep"]))
    for n, ms in ((1, 5.0), (2, 5.5), (4, 6.5), (8, 8.5)):
        for _ in range(3):
            learner.costs.at(1).verify.observe(n, ms)
            learner.costs.at(1).level.observe(n, 0.3)
            learner.costs.at(1).extend.observe(n, 0.3)
    lengths = {}
    for kept in (5, 0):
        for _ in range(200):
            learner.chain_length(1)
            learner.observe([N_VOCAB] * (kept + 1), 6, 7.5)
        lengths[kept] = learner.chain_length(1)
    assert lengths[5] > 4
    assert lengths[0] == 0


def test_a_habit_gives_the_head_the_targets_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a round that guesses with it the head reads under noise, in any other without, and none stays afterwards."""
    given: list[Any] = [None]
    read_with: list[bool] = []
    extend = SimulatedHead.extend

    def perturb(head: SimulatedHead, noise: Any, *reach: float) -> None:
        given[0] = noise

    def reads(head: SimulatedHead, *args: Any, **more: Any) -> None:
        read_with.append(given[0] is not None)
        extend(head, *args, **more)

    monkeypatch.setattr(SimulatedHead, "perturb", perturb)
    monkeypatch.setattr(SimulatedHead, "extend", reads)
    machine = Machine(lambda n: 5.0 if n <= 2 else 5.0 + 4.0 * (n - 2))
    learner, noisy_habits = policy(machine), Counter[bool]()
    observe = learner.observe

    def observed(*args: Any) -> None:
        this = learner._round
        if this.kind is Kind.HABIT:
            noisy_habits[this.noisy] += 1
            assert read_with[-1] == this.noisy
        assert given[0] is None
        observe(*args)

    monkeypatch.setattr(learner, "observe", observed)
    run(Text(1.0, 3.0), machine, 500, learner, noisy=True)
    assert noisy_habits[True] > 20
    assert noisy_habits[False] > 0


@pytest.mark.parametrize("noisy", [False, True])
def test_ordinary_rounds_are_repeated_by_habit(noisy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a chain of one is what pays, most rounds are not worked out, and the text comes as fast as if all were."""

    def speed_and_kinds() -> tuple[float, Counter[Kind]]:
        text, machine, kinds = (
            Text(1.0, 3.0),
            Machine(lambda n: 5.0 if n <= 2 else 5.0 + 4.0 * (n - 2)),
            Counter[Kind](),
        )
        learner = policy(machine)
        run(text, machine, 300, learner, noisy=noisy)
        observe = learner.observe

        def observed(*args: Any) -> None:
            kinds[learner._round.kind] += 1
            observe(*args)

        monkeypatch.setattr(learner, "observe", observed)
        return run(text, machine, 400, learner, noisy=noisy)[0], kinds

    by_habit, kinds = speed_and_kinds()
    assert kinds[Kind.HABIT] > 0.6 * kinds.total()
    monkeypatch.setattr(Policy, "_by_habit", lambda *_: None)
    worked_out, kinds = speed_and_kinds()
    assert kinds[Kind.HABIT] == 0
    assert by_habit > 0.97 * worked_out


def test_habits_ask_for_as_many_levels_as_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every row costs a fifth of the first, most deep chains are followed without being worked out."""
    machine = Machine(lambda n: 5.0 + 1.0 * (n - 1))
    learner, kinds = policy(machine), Counter[Kind]()
    observe = learner.observe

    def observed(*args: Any) -> None:
        this = learner._round
        if this.n_levels > 0:
            kinds[this.kind] += 1
        observe(*args)

    monkeypatch.setattr(learner, "observe", observed)
    run(Text(1.0, 6.0), machine, 400, learner)
    assert kinds[Kind.HABIT] > max(40, 2 * kinds[Kind.WORKED_OUT])


def test_every_round_teaches_while_a_head_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rounds by habit are all learnt from, later ones that ask for one guess only now and then."""
    machine = Machine(lambda n: 5.0 if n <= 2 else 5.0 + 4.0 * (n - 2))
    learner, teaching = policy(machine), list[bool]()
    observe = learner.observe

    def observed(*args: Any) -> None:
        this = learner._round
        if this.kind is Kind.HABIT and this.n_levels == 0:
            teaching.append(this.teaches)
        observe(*args)

    monkeypatch.setattr(learner, "observe", observed)
    run(Text(1.0, 3.0), machine, 600, learner)
    assert all(teaching[:15])
    assert np.mean(teaching[-60:]) < 0.5
