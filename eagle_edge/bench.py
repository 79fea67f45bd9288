"""Plain against drafted decoding, question by question in turn, so that a drifting machine favours neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .config import SamplingParams
from .engine import Engine
from .equality import PLAIN
from .stats import Stats

__all__ = ["Row"]


@dataclass(slots=True)
class Row:
    """The runs of one question set, plain and drafted in pairs."""

    set: str
    plain: list[Stats] = field(default_factory=list)
    drafted: list[Stats] = field(default_factory=list)

    def run(self, engine: Engine, ids: Sequence[int], params: SamplingParams) -> None:
        """Add one prompt, generated both ways from empty caches; the order changes with every prompt."""
        runs = [(PLAIN, self.plain), (engine.draft_params, self.drafted)]
        for how, stats in runs if len(self.plain) % 2 == 0 else reversed(runs):
            engine.reset()
            engine.complete(ids, params, how)
            stats.append(engine.stats)

    def as_dict(self) -> dict[str, Any]:
        """The row that ``bench --json`` reports: medians over prompts, sums of counts."""
        ratio = [d.tokens_per_second / p.tokens_per_second for p, d in zip(self.plain, self.drafted, strict=True)]
        rounds = sum(stats.rounds for stats in self.drafted)
        accepted = sum(stats.draft_n_accepted for stats in self.drafted)
        return {
            "set": self.set,
            "prompts": len(self.plain),
            "plain_tps": round(float(np.median([stats.tokens_per_second for stats in self.plain])), 2),
            "draft_tps": round(float(np.median([stats.tokens_per_second for stats in self.drafted])), 2),
            "speedup": round(float(np.median(ratio)), 3),
            "speedup_spread": [round(float(q), 3) for q in np.quantile(ratio, [0.1, 0.9])],
            "tau": round((accepted + rounds) / rounds, 3),
            "draft_n": sum(stats.draft_n for stats in self.drafted),
            "rounds": rounds,
            "accept_by_depth": [round(share, 3) for share in self._accept_by_depth()],
            "p95_ms_plain": round(self._p95(self.plain), 2),
            "p95_ms_draft": round(self._p95(self.drafted), 2),
            "share": self._share(),
        }

    def _accept_by_depth(self) -> list[float]:
        depth = max((len(stats.offered) for stats in self.drafted), default=0)
        offered, accepted = np.zeros(depth), np.zeros(depth)
        for stats in self.drafted:
            offered[: len(stats.offered)] += stats.offered
            accepted[: len(stats.accepted)] += stats.accepted
        return [float(a / o) for a, o in zip(accepted, offered, strict=True)]

    def _share(self) -> dict[str, float]:
        seconds = {phase: sum(stats.seconds[phase] for stats in self.drafted) for phase in ("draft", "verify", "other")}
        total = sum(seconds.values()) or 1.0
        return {phase: round(spent / total, 4) for phase, spent in seconds.items()}

    @staticmethod
    def _p95(runs: list[Stats]) -> float:
        gaps = [gap for stats in runs for gap in stats.gaps_ms]
        return float(np.quantile(gaps, 0.95)) if gaps else 0.0
