"""What a round does where its first guesses are ordinary ones, without working it out again.

Working out a round takes a twentieth of a small target's evaluation. As long as prices stay as they are, a few bounds
on the head's two likeliest first guesses say the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from .growth import Growth, Prices
from .worth import MARGIN

__all__ = ["Habit"]


@dataclass(frozen=True, slots=True)
class Habit:
    """Bounds on chances of being accepted.

    Attributes:
        prices: that they were worked out for.
        hopeless: below it a likeliest guess is not worth its verification, nor is any number of guesses.
        price: what verifying the likeliest guess costs, in tokens.
        second: above it a second guess may be worth it too.
        promising: above it asking for the children of the likeliest guess may pay.
    """

    prices: Prices
    hopeless: float
    price: float
    second: float
    promising: float

    @classmethod
    def of(cls, prices: Prices, growth: Growth, work_ms: float) -> Habit:
        """The bounds that follow from prices, and from what children have been like.

        Args:
            prices: of a round.
            growth: knows the children.
            work_ms: what working a round out takes.
        """
        second = prices.of_one_more([0.0, 1.0])
        return cls(
            prices=prices,
            hopeless=prices.of_one_more([0.0]),
            price=prices.rate * (prices.verify_ms[2] - prices.verify_ms[1]),
            second=second + prices.rate * work_ms,
            promising=growth.promising(second, prices, work_ms),
        )

    def n_nodes(self, first: float, second: float) -> int | None:
        """Guesses to verify, 0 or 1; None where it has to be worked out."""
        if first < min(self.hopeless, self.promising):
            return 0
        if first >= self.promising or second >= self.second:
            return None
        return 1 if first > self.price + MARGIN else 0
