"""Which tree a round drafts, so that it buys tokens faster than the rest of the generation does.

In the long run tokens per millisecond are most when every round maximises tokens - rate * milliseconds, where rate is
the long run's own tokens per millisecond (renewal-reward theory; Dinkelbach 1967). Everything follows from this one
price of time: how many candidates to verify (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276), whether another
level pays for its evaluation (DDD, arXiv 2409.00142; SVIP, arXiv 2411.18462), and whether to ask the head at all. A
chain, or nothing, are ordinary outcomes.

A token saved is worth what it would have cost where it lies. So the price is that of rounds lately where the text did
not repeat itself; where it does, tokens come several times as fast, and repetitions have a price of their own
(``repetition.py``).

The policy decides only how many picks an evaluation serves; the text never depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .asking import USUAL_PAIRS, Asking, Listener
from .chain_length import ChainLength
from .chances import Chances
from .config import DraftParams
from .cost import CostModel, Costs
from .exploration import Exploration
from .growth import Growth, Prices
from .habit import Followed, Habit
from .pace import Pace
from .plain import Plain
from .repetition import best_piece, worth_of_chain
from .round import Kind, Round
from .same_noise import NO_NOISE, Noise, SameNoise
from .suffix import SuffixIndex
from .tree import Tree, lone
from .worth import MARGIN

__all__ = ["Policy"]

_LONGEST_SUFFIX = 32  # tokens
_LONG = 4  # tokens of a repetition that is always worth a closer look
_TEACHING = 4  # ordinary rounds of which one is learnt from
_ALL_TEACH = (Kind.REPEATED, Kind.WORKED_OUT)  # every round of these kinds is learnt from
_HABITUAL = 48  # rounds that prices, and the habit that follows from them, last
_FIRST_HABIT = 8  # the same at first, when costs are hardly known
_VERSION = 8  # of what is kept between runs


class Policy:
    """Chooses the trees of an engine, and learns from every round.

    Args:
        params: the bounds: ``total`` nodes, ``depth`` levels after the first, ``top_k`` children of a node.
        clock: seconds.

    Attributes:
        costs: what calls cost here.
        n_rounds: observed so far.
    """

    def __init__(self, params: DraftParams, clock: Callable[[], float] = time.perf_counter) -> None:
        self.params = params
        self.costs = CostModel()
        self._clock = clock
        self._asking = Asking(self.costs, clock)
        self._growth = Growth(params)
        self._chances = {False: Chances(), True: Chances()}  # by whether the target draws its tokens
        self._same_noise = SameNoise()
        self._pace = Pace()
        self._plain = Plain()
        self._exploration = Exploration()
        self._chain_length = ChainLength()
        self.n_rounds = 0
        self.start()

    def start(self, *, repetitions: bool = True) -> None:
        """Begin another text, whose own repetitions compete with the head or not."""
        self.costs.begin()
        self._plain.begin()
        for chances in self._chances.values():
            chances.suffixes.begin()
        self._index = SuffixIndex()
        self._longest_suffix = _LONGEST_SUFFIX if repetitions else 0
        self._habit: Habit | None = None
        self._priced: Prices | None = None
        self._priced_until = 0  # the round in which prices are to be worked out again
        self._round = Round()

    # -- one round -----------------------------------------------------------------------------------------------------

    def propose(
        self, ids: Sequence[int], room: int, n_threads: int, listener: Listener | None = None, drawn: bool = True
    ) -> Tree:
        """The tree to verify under the last of ``ids``; its root alone where nothing pays.

        Args:
            ids: the text.
            room: positions left below the root.
            n_threads: of the evaluations to come.
            listener: who drafts; None drafts from the text alone.
            drawn: whether the target draws its tokens.
        """
        this = self._begin(Round(n_threads=n_threads, drawn=drawn, started=self._clock()))
        costs, chances, root = self.costs.at(n_threads), self._chances[drawn], ids[-1]
        if room <= 0 or costs.verify.is_empty:  # the first evaluation of all tells what a lone row costs
            return lone(root)
        if listener is not None and len(listener.backlog) == 0:
            listener = None
        this.samples = listener is not None and listener.noise.at is not None
        this.suffix, this.suffix_length = self._index.propose(ids, min(room, self._longest_suffix))
        keeps_plain = listener is not None and self._plain.wants_round(chances.worth[False].mean)
        if self._is_short() and (keeps_plain or not chances.short.asks()):
            this.suffix = []
        if this.suffix:
            return self._repeat(root, room, listener, costs)
        if listener is None or keeps_plain or not chances.worth[False].asks():
            this.teaches = keeps_plain or self.n_rounds % _TEACHING == 0
            return self._idle(root)
        this.noise = self._shared_noise(listener)
        habitual = self._by_habit(root, room, listener)
        return self._work_out(root, room, listener, costs) if habitual is None else habitual

    def _begin(self, this: Round) -> Round:
        """Make ``this`` the current round; what the one before took beyond its calls is known by now."""
        done, self._round = self._round, this
        # Rounds that teach are not the usual ones where most do not.
        usual = done.kind in _ALL_TEACH or (not done.teaches and self.n_rounds % _TEACHING == 2)
        if usual and done.verify_ms > 0 and (self._asking.is_warm or done.head_ms == 0):
            self._pace.note_rest(done, this.started)
        if this.n_threads != done.n_threads:
            self._priced_until = 0
        return this

    def _repeat(self, root: int, room: int, listener: Listener | None, costs: Costs) -> Tree:
        """The tree of a round in which the text repeats itself; the head is asked too where that pays."""
        this, prices, chances = self._round, self._prices(costs), self._chances[self._round.drawn]
        this.kind = Kind.REPEATED
        given = chances.suffixes(this.suffix_length, len(this.suffix))
        this.given = best_piece(given, prices, self._pace.rest_ms(Kind.REPEATED))
        this.without = worth_of_chain(this.given, prices)
        if self._is_short():
            chances.short.note(this.without - prices.rate * self._pace.more_rest_ms(Kind.REPEATED, Kind.IDLE))
        if listener is not None and chances.worth[this.without > 0].asks():
            this.noise = self._shared_noise(listener)
        elif this.without == 0:
            self._note_pace(0.0, 0, prices)
            return this.guesses.tree(root, self._explore(0, 0.0, costs, prices))
        else:
            listener = None
        return self._work_out(root, room, listener, costs)

    def _work_out(self, root: int, room: int, listener: Listener | None, costs: Costs) -> Tree:
        """The best tree of what the head guesses, if it is asked, and the text's repetition."""
        this, prices = self._round, self._prices(costs)
        if listener is not None:
            self._ask(listener, room, prices)
            self._form_habit(prices)
        this.guesses.graft(this.suffix[: len(this.given)], this.given)
        gains = this.guesses.gains(prices.most, prices.verify_ms, prices.rate)
        n = _best(gains)
        if listener is not None:
            self._note_worth(gains, prices.rate)
        self._note_pace(gains[n], n, prices)
        n = self._explore(n, gains[n], costs, prices)
        return this.guesses.tree(root, n)

    def _shared_noise(self, listener: Listener) -> Noise:
        """What the head is given to guess with this time."""
        return listener.noise if listener.noise.at is not None and self._same_noise.chooses() else NO_NOISE

    def _by_habit(self, root: int, room: int, listener: Listener) -> Tree | None:
        """The tree of a round like others before, or None where there is more to work out."""
        this, habit = self._round, self._habit
        if habit is None or self.n_rounds >= self._priced_until or self._exploration.is_due:
            return None
        chances, most = self._chances[this.drawn], min(room, self.params.depth + 1)
        calibrate, head = chances.heads[this.noisy], listener.head
        try:
            first = self._asking.read(this, self.n_rounds, listener)
            followed = this.followed = habit.follow(first, self._asking.level(this, head), calibrate, most)
        finally:
            this.noise.stop(head)
        if followed.may_branch:
            return None
        gains = followed.gains
        n = _best(gains)
        self._exploration.note_round()
        this.kind = Kind.HABIT
        this.draft_ms += self._pace.more_rest_ms(Kind.HABIT, Kind.IDLE) + this.levels_ms
        this.teaches = this.n_levels > 0 or self.n_rounds % _TEACHING == 0 or calibrate.is_new
        if this.teaches:
            followed.add_to(this.guesses)
            self._exploration.note_gain(gains[n])
            this.n_nodes, this.ordinary_ms = n + 1, habit.prices.verify_ms[n + 1]
            self._note_worth(gains, habit.prices.rate)
            self._note_pace(gains[n], n, habit.prices)
        return followed.chain(root, n)

    def _note_worth(self, gains: list[float], rate: float) -> None:
        """Learn what asking was worth, beyond what the text's repetitions promise alone."""
        this, levels = self._round, rate * self._round.levels_ms
        best = max(max(gains[:2]), max(gains[2:], default=0.0) - levels)  # the first guess alone needs no levels
        if this.suffix:  # which has been taken at its price, levels have not
            best = gains[_best(gains)] - this.without - levels
        ms = this.draft_ms - this.levels_ms + self._lone_ms() - self._plain_ms()
        self._chances[this.drawn].worth[this.without > 0].note(best - rate * ms)

    def _form_habit(self, prices: Prices) -> None:
        """Note what this round's prices mean for the next ones."""
        if self._habit is None or self._habit.prices is not prices:
            self._habit = Habit(prices, self._growth, self._pace.more_rest_ms(Kind.WORKED_OUT, Kind.HABIT))

    def _idle(self, root: int) -> Tree:
        """A round without any guess: most of a text where nothing pays, so most of them teach nothing."""
        if not self._round.teaches:
            return lone(root)
        self._exploration.note_round()
        plain_ms = self._plain_ms()
        self._pace.note(1.0, plain_ms, plain_ms)
        self._exploration.note_gain(0.0)
        return lone(root)

    def chain_length(self, n_threads: int) -> int:
        """Tokens of a sampled chain, whose chances are known only after it is drawn: the best on average."""
        this = self._round = Round(n_threads=n_threads, sampled=True)
        costs = self.costs.at(n_threads)
        if costs.verify.is_empty:
            return 0
        prices = self._prices(costs)
        most = min(self.params.total - 1, self.params.depth + 1)
        n, gain, this.draft_ms = self._chain_length.best(prices, costs.extend.at(USUAL_PAIRS), most)
        self._note_pace(gain + prices.rate * this.draft_ms, n, prices)
        return n

    def observe(self, tokens: Sequence[int], n_nodes: int, verify_ms: float) -> None:
        """Learn from the round that ``propose`` began.

        Args:
            tokens: what the target chose.
            n_nodes: of the tree it evaluated, root included.
            verify_ms: what that took.
        """
        this = self._round
        self.n_rounds += 1
        this.verify_ms = verify_ms
        self._plain.note_round(n_nodes == 1 and this.kind is Kind.IDLE)
        if not this.teaches:
            return
        costs = self.costs.at(this.n_threads)
        if self._plain.is_settled:
            self._plain.note(verify_ms, self._lone_ms())
            verify_ms /= self._plain.share  # what it would have taken between drafts
        if n_nodes == 1:
            self._exploration.note_lone(verify_ms, self._lone_ms())
        costs.verified(n_nodes, verify_ms)
        explored = not this.sampled and n_nodes != this.n_nodes
        explored_ms = max(0.0, verify_ms - this.ordinary_ms) if explored else 0.0
        self._exploration.note_time(this.draft_ms + verify_ms, explored_ms)
        if this.sampled:
            self._chain_length.observe(len(tokens), n_nodes - 1)
            return
        if not len(this.guesses):
            return
        outcomes = this.outcomes(tokens)
        chances = self._chances[this.drawn]
        chances.heads[this.noisy].observe(*outcomes)
        if this.samples and outcomes[2]:
            self._same_noise.note(this.noisy, outcomes[2][0])
        n_tried = min(len(tokens), len(this.suffix))
        n_accepted = next((i for i in range(n_tried) if tokens[i] != this.suffix[i]), n_tried)
        chances.suffixes.observe(this.suffix_length, n_accepted, n_tried)

    def _prices(self, costs: Costs) -> Prices:
        """What decisions cost, worked out again now and then."""
        if self._priced is None or self.n_rounds >= self._priced_until:
            rate = self._pace.rate(self._plain_ms())
            verify_ms, level_ms = costs.verify.up_to(self.params.total), costs.level.up_to(self.params.top_k)
            self._priced = Prices(rate, verify_ms, level_ms, self.params.total - 1)
            self._priced_until = self.n_rounds + min(max(_FIRST_HABIT, self.n_rounds // 4), _HABITUAL)
        return self._priced

    def _lone_ms(self) -> float:
        """An evaluation of one row between drafts."""
        return self.costs.at(self._round.n_threads).verify.at(1)

    def _plain_ms(self) -> float:
        """An evaluation where nothing is drafted."""
        return self._plain.share * self._lone_ms()

    def _is_short(self) -> bool:
        """Whether the text repeats itself, but only a few tokens of it."""
        return 0 < self._round.suffix_length < _LONG and len(self._round.suffix) > 0

    def _ask(self, listener: Listener, room: int, prices: Prices) -> None:
        """Let the head read and guess, unless it has, and go on guessing while that pays."""
        this, head = self._round, listener.head
        calibrate = self._chances[this.drawn].heads[this.noisy]
        try:
            if this.followed is None:
                this.followed = Followed([self._asking.read(this, self.n_rounds, listener)])
            evaluated = this.followed.add_to(this.guesses, calibrate, self.params.top_k)
            level = self._asking.level(this, head)
            self._growth.grow(this.guesses, level, calibrate, prices, room, evaluated)
        finally:
            this.noise.stop(head)
        this.kind = Kind.WORKED_OUT
        this.draft_ms += self._pace.more_rest_ms(Kind.HABIT, Kind.IDLE)
        this.levels_ms += self._pace.more_rest_ms(Kind.WORKED_OUT, Kind.HABIT)
        this.draft_ms += this.levels_ms

    def _note_pace(self, gain: float, n: int, prices: Prices) -> None:
        this = self._round
        if this.suffix:  # as fast as a text is where it repeats itself, the rest of it is not
            return
        tokens = 1 + gain + prices.rate * (prices.verify_ms[n + 1] - prices.verify_ms[1])
        self._pace.note(tokens, prices.verify_ms[n + 1] + this.draft_ms, self._plain_ms())

    def _explore(self, n: int, gain: float, costs: Costs, prices: Prices) -> int:
        """``n``, or now and then another size: a lone row to compare with, or one that may be cheaper than believed.

        What drafting is compared with has to be known as of now, and a text that is always drafted never shows it.
        """
        this = self._round
        self._exploration.note_round()
        if self._exploration.wants_lone(gain):
            return 0
        self._exploration.note_gain(gain)
        this.n_nodes, this.ordinary_ms = n + 1, prices.verify_ms[n + 1]
        if not self._exploration.may_look(self.n_rounds):
            return n
        hoped = this.guesses.gains(prices.most, costs.verify.up_to(self.params.total, optimistic=True), prices.rate)
        return hoped.index(max(hoped))

    # -- what was learnt -----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Everything worth keeping for the next time."""
        return {
            "version": _VERSION,
            "costs": self.costs.to_json(),
            "chances": [self._chances[drawn].to_json() for drawn in (False, True)],
            "pace": self._pace.to_json(),
            "plain": self._plain.to_json(),
            "same_noise": self._same_noise.to_json(),
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Take over what ``to_json`` gave; anything else is ignored and gives False."""
        other = Policy(self.params, self._clock)
        try:
            if state["version"] != _VERSION:
                return False
            other.costs.restore(state["costs"])
            for drawn in (False, True):
                other._chances[drawn].restore(state["chances"][drawn])
            other._same_noise.restore(state["same_noise"])
            other._pace.restore(state["pace"])
            other._plain.restore(state["plain"])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return False
        self.__dict__.update(other.__dict__)
        return True


def _best(gains: list[float]) -> int:
    """Guesses to verify by what each number of them gains: none unless that is clearly better."""
    best = gains.index(max(gains))
    return best if gains[best] > gains[0] + MARGIN else 0
