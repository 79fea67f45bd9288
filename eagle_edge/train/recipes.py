"""How each generation of EAGLE heads is built and trained: the one place that knows them by name.

Sources: EAGLE-1 https://arxiv.org/abs/2401.15077, EAGLE-3 https://arxiv.org/abs/2503.01840 and their trainers in
github.com/SafeAILab/EAGLE; EAGLE-3.1's two switches as in github.com/sgl-project/SpecForge.
"""

from __future__ import annotations

from dataclasses import dataclass

from .params import HeadParams, LoopParams

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A kind of head, with the settings that its name stands for.

    Attributes:
        title: what the head is called.
        summary: what makes it different, in one line.
        head, loop: its settings.
    """

    title: str
    summary: str
    head: HeadParams
    loop: LoopParams


RECIPES: dict[str, Recipe] = {
    "eagle3": Recipe(
        "EAGLE-3",
        "three taps, several steps on its own outputs (training-time test), cross-entropy alone",
        HeadParams(),
        LoopParams(),
    ),
    "eagle3.1": Recipe(
        "EAGLE-3.1",
        "EAGLE-3 with a norm for each tap, feeding back its output after the norm",
        HeadParams(norm_before_residual=False, fc_norm=True, norm_output=True),
        LoopParams(),
    ),
    "eagle1": Recipe(
        "EAGLE-1",
        "imitates the state after the target's final norm, from noisy features, and drafts from the whole vocabulary",
        HeadParams(kind="eagle1", taps=(-1,), n_draft_vocab=0, norm_before_residual=False),
        LoopParams(n_steps=1, keep_rows=1.0, hard_share=0.0, token_loss=0.1, state_loss=1.0, noise=0.2),
    ),
}
