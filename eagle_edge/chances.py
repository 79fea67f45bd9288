"""How often drafts meet the target, and what asking for them is worth, as learnt from one kind of text.

Sampled and unsampled texts are different kinds: the same guess meets a target that draws its token less often than one
that takes the likeliest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .calibration import HeadCalibration, SuffixCalibration
from .worth import Worth

__all__ = ["Chances"]

_MOST_WORTH = 9.0  # tokens; more is no memory but a broken file


class Chances:
    """What was learnt of one kind of text.

    Attributes:
        heads: the head's chances, by same-noise drafting.
        suffixes: those of the text's own repetitions.
        worth: of asking the head, by whether a suffix competes.
        short: what looking closer at short repetitions is worth.
    """

    def __init__(self) -> None:
        self.heads = {False: HeadCalibration(), True: HeadCalibration()}
        self.suffixes = SuffixCalibration()
        self.worth = {False: Worth(), True: Worth()}
        self.short = Worth()

    def to_json(self) -> dict[str, Any]:
        """Everything learnt."""
        return {
            "heads": [self.heads[noisy].to_json() for noisy in (False, True)],
            "suffixes": self.suffixes.to_json(),
            "worth": [self.worth[competes].mean for competes in (False, True)],
            "short": self.short.mean,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_json`` gave.

        Raises:
            ValueError, TypeError, KeyError, IndexError: it is something else.
        """
        self.suffixes.restore(state["suffixes"])
        for which in (False, True):
            self.heads[which].restore(state["heads"][which])
            self.worth[which].mean = _bounded(state["worth"][which])
        self.short.mean = _bounded(state["short"])


def _bounded(tokens: Any) -> float:
    return min(max(float(tokens), -_MOST_WORTH), _MOST_WORTH)
