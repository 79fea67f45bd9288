"""Contenders take turns, question by question, so that a drifting machine favours nobody; medians over questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..config import SamplingParams
from .meters import Energy
from .runs import Contender, Prompt, Run

__all__ = ["ALL", "Comparison", "Key"]

ALL = "all"  # the name of all sets together
_SETTLE_S = 0.05  # between two answers: idle threads of the one before spin for a moment


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What a line of the table is about."""

    set: str
    context: int
    temperature: float


class Comparison:
    """Runs of all contenders.

    Args:
        contenders: the first is the one that ratios compare with: plain decoding.
        bound: what the machine allows, see below.
        energy: the meter.

    Attributes:
        bound: tokens a second of plain decoding if an evaluation took no longer than reading the weights; may be raised
            until ``rows`` is called.
    """

    def __init__(self, contenders: Sequence[Contender], bound: float, energy: Energy | None = None) -> None:
        self.contenders = contenders
        self.bound = bound
        self._energy = energy or Energy()
        self._runs: dict[Key, dict[str, list[Run]]] = {}
        self._turn = 0

    def warm_up(self, prompt: Prompt, params: SamplingParams) -> None:
        """Everybody answers once, uncounted: pages, graphs and costs are known from then on."""
        for contender in self.contenders:
            contender.answer(prompt, params)

    def run(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams,
        temperatures: Sequence[float],
        told: Callable[[str], None],
    ) -> None:
        """Every contender answers every prompt at every temperature; who begins changes with every turn.

        Args:
            prompts: one after the other.
            params: of all, but for the temperature.
            temperatures: in turn.
            told: called with the name of who comes next.
        """
        for prompt in prompts:
            for temperature in temperatures:
                key = Key(prompt.set, prompt.context, temperature)
                runs = self._runs.setdefault(key, {contender.name: [] for contender in self.contenders})
                first, self._turn = self._turn % len(self.contenders), self._turn + 1
                for contender in [*self.contenders[first:], *self.contenders[:first]]:
                    told(contender.name)
                    time.sleep(_SETTLE_S)
                    before = self._energy.read()
                    run = contender.answer(prompt, replace(params, temperature=temperature))
                    run.joules = self._energy.since(before)
                    runs[contender.name].append(run)

    def rows(self) -> list[dict[str, Any]]:
        """One row for every contender in every set, context and temperature; then all sets together."""
        keys = sorted(self._runs)
        rows = [row for key in keys for row in self._rows(key, self._runs[key])]
        if len({key.set for key in keys}) > 1:
            for context, temperature in sorted({(key.context, key.temperature) for key in keys}):
                chosen = [self._runs[key] for key in keys if (key.context, key.temperature) == (context, temperature)]
                together = {name: [run for runs in chosen for run in runs[name]] for name in chosen[0]}
                rows += self._rows(Key(ALL, context, temperature), together)
        return rows

    def _rows(self, key: Key, runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
        baseline = runs[self.contenders[0].name]
        return [
            {
                "set": key.set,
                "context": key.context,
                "temperature": key.temperature,
                "contender": name,
                "prompts": len(own),
                **_speed(own, baseline),
                "versus": {other: _ratio(own, theirs)[0] for other, theirs in runs.items() if other != name},
                **_drafting(own),
                **self._limits(own),
            }
            for name, own in runs.items()
        ]

    def _limits(self, runs: list[Run]) -> dict[str, Any]:
        tau = _tau(runs)
        joules = [run.joules for run in runs if run.joules is not None]
        return {
            "of_limit": None if tau is None else _rounded(_median(runs) / (tau * self.bound), 3),
            "tokens_per_joule": round(sum(run.n_tokens for run in runs) / sum(joules), 3) if sum(joules) > 0 else None,
        }


def _speed(runs: list[Run], baseline: list[Run]) -> dict[str, Any]:
    ratio, spread = _ratio(runs, baseline)
    gaps = [gap for run in runs for gap in run.gaps_ms]
    return {
        "tokens_per_second": _rounded(_median(runs), 2),
        "ratio": ratio,
        "ratio_spread": spread,
        "first_ms": round(float(np.median([run.first_ms for run in runs])), 1),
        "p95_ms": round(float(np.quantile(gaps, 0.95)), 2) if gaps else None,
        "same_text": round(float(np.mean([a.text == b.text for a, b in zip(runs, baseline, strict=True)])), 3),
    }


def _drafting(runs: list[Run]) -> dict[str, Any]:
    n_rounds = sum(run.rounds for run in runs)
    phases = {name: sum(run.phases[name] for run in runs) for name in runs[0].phases}
    total = sum(phases.values())
    return {
        "tau": _rounded(_tau(runs), 3),
        "draft_n_per_round": round(sum(run.draft_n for run in runs) / n_rounds, 2) if n_rounds else None,
        "accept_by_depth": _accept_by_depth(runs),
        "share": {name: round(seconds / total, 4) for name, seconds in phases.items()} if total else {},
    }


def _tau(runs: list[Run]) -> float | None:
    n_rounds = sum(run.rounds for run in runs)
    return (sum(run.draft_n_accepted for run in runs) + n_rounds) / n_rounds if n_rounds else None


def _accept_by_depth(runs: list[Run]) -> list[float]:
    depth = max(len(run.offered) for run in runs)
    offered, accepted = np.zeros(depth), np.zeros(depth)
    for run in runs:
        offered[: len(run.offered)] += run.offered
        accepted[: len(run.accepted)] += run.accepted
    return [round(float(a / o), 3) for a, o in zip(accepted, offered, strict=True)]


def _median(runs: list[Run]) -> float:
    rates = [run.tokens_per_second for run in runs]
    return float(np.nanmedian(rates)) if not np.isnan(rates).all() else float("nan")


def _ratio(runs: list[Run], baseline: list[Run]) -> tuple[float | None, list[float] | None]:
    """The median over prompts of one rate over the other, and its 10th and 90th percentile."""
    ratios = np.array([a.tokens_per_second / b.tokens_per_second for a, b in zip(runs, baseline, strict=True)])
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return None, None
    low, middle, high = (round(float(q), 3) for q in np.quantile(ratios, [0.1, 0.5, 0.9]))
    return middle, [low, high]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not np.isfinite(value) else round(value, digits)
