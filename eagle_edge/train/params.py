"""The settings of a training run, checked once; a run folder keeps them, so that it can be taken up again."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EagleEdgeError

__all__ = ["DataParams", "EvaluationParams", "HeadParams", "LoopParams", "TrainParams"]

# Loading, exporting and measuring alone take about half of this.
MIN_BUDGET = 30


@dataclass(frozen=True, slots=True)
class DataParams:
    """What the target is asked and how it answers.

    Attributes:
        prompt_files: .jsonl or .txt files of prompts; their prompts come first.
        answer_tokens: stop when the answers hold this many tokens.
        own_share: the share of prompts that the target writes itself; 1 without prompt files.
        openers: start most of its own prompts with a common opening, so that they differ more.
        passage_share: the share of prompts that have it summarise or rewrite its earlier answers, if it writes any.
        max_prompt_tokens, max_answer_tokens: longer prompts are left out, longer answers end there.
        max_own_tokens: of a prompt that the target writes; what has not ended by then rarely does.
        max_passage_tokens: of the text in such a prompt.
        greedy_share: the share of answers at temperature 0; the rest is sampled at ``temperatures``.
        temperatures: drawn from with equal chance.
        n_streams: sequences generated at once.
        n_likely: next tokens kept of each distribution.
        prompts_per_round: prompts answered between two saves; a kill loses at most one round.
    """

    prompt_files: tuple[str, ...] = ()
    answer_tokens: int = 1_000_000
    own_share: float = 0.85
    openers: bool = True
    passage_share: float = 0.06
    max_prompt_tokens: int = 260
    max_own_tokens: int = 128
    max_answer_tokens: int = 176
    max_passage_tokens: int = 900
    greedy_share: float = 0.65
    temperatures: tuple[float, ...] = (0.6, 0.8, 1.0, 1.0)
    n_streams: int = 96
    n_likely: int = 32
    prompts_per_round: int = 512

    def __post_init__(self) -> None:
        _check(self.answer_tokens >= 1, "answer_tokens", self.answer_tokens, "at least 1")
        _check(0 <= self.own_share <= 1, "own_share", self.own_share, "0..1")
        _check(0 <= self.passage_share < 1, "passage_share", self.passage_share, "0..1")
        _check(self.max_passage_tokens >= 12, "max_passage_tokens", self.max_passage_tokens, "at least 12")
        _check(
            self.own_share > 0 or bool(self.prompt_files), "own_share", self.own_share, "above 0 without prompt files"
        )
        _check(self.max_prompt_tokens >= 1, "max_prompt_tokens", self.max_prompt_tokens, "at least 1")
        _check(self.max_own_tokens >= 1, "max_own_tokens", self.max_own_tokens, "at least 1")
        _check(self.max_answer_tokens >= 2, "max_answer_tokens", self.max_answer_tokens, "at least 2")
        _check(0 <= self.greedy_share <= 1, "greedy_share", self.greedy_share, "0..1")
        _check(bool(self.temperatures) and min(self.temperatures) > 0, "temperatures", self.temperatures, "positive")
        _check(1 <= self.n_streams <= 254, "n_streams", self.n_streams, "1..254")
        _check(self.prompts_per_round >= 1, "prompts_per_round", self.prompts_per_round, "at least 1")
        _check(1 <= self.n_likely <= 1024, "n_likely", self.n_likely, "1..1024")


@dataclass(frozen=True, slots=True)
class HeadParams:
    """The shape of the head; 0 takes the target's value.

    Attributes:
        kind: "eagle1" or "eagle3".
        taps: boundaries to read; empty for 2, the middle, and 3 before the end. EAGLE-1 reads -1, after the final norm.
        n_draft_vocab: R; EAGLE-1 drafts from the whole vocabulary.
        n_ff, n_head, n_head_kv: of the layer.
        norm_before_residual, norm_before_fc, fc_norm, norm_output: the switches of ``HeadConfig``.
    """

    kind: str = "eagle3"
    taps: tuple[int, ...] = ()
    n_draft_vocab: int = 8192
    n_ff: int = 0
    n_head: int = 0
    n_head_kv: int = 0
    norm_before_residual: bool = True
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    def __post_init__(self) -> None:
        _check(self.kind in ("eagle1", "eagle3"), "kind", self.kind, "eagle1 or eagle3")
        _check(self.n_draft_vocab >= 0, "n_draft_vocab", self.n_draft_vocab, "0 or more")
        if self.kind == "eagle1":
            _check(self.taps == (-1,), "taps", list(self.taps), "[-1] for EAGLE-1: the state after the final norm")
            _check(self.n_draft_vocab == 0, "n_draft_vocab", self.n_draft_vocab, "0 for EAGLE-1: every token")


@dataclass(frozen=True, slots=True)
class LoopParams:
    """How the head is optimised.

    Attributes:
        n_steps: steps of training-time test.
        keep_rows: the share of rows that each further step carries on.
        step_decay: weight of each further step relative to the one before.
        hard_share: how much of a label is put on the target's own choice; the rest is its distribution.
        same_noise: instead of mixed labels, that share of rows has the target's choice, and the others what it draws,
            with its noise added to the head's logits.
        token_loss, state_loss: weights of the cross-entropy and of the regression on the target's states (EAGLE-1).
        noise: width of the uniform noise on the features, at 512 tokens.
        epochs: passes over the data, unless a budget says how long.
        patience: stop after so many evaluations without a better acceptance; 0 never does. The best weights are kept.
        n_sequences: passages per batch.
        n_ctx: longer passages are cut.
        learning_rate, warmup_steps, weight_decay, clip_norm: of AdamW under a cosine schedule.
        held_out: every so many-th passage is kept for watching, never trained on.
        n_watched: of the held-out passages so many are looked at while training.
        checkpoint_steps, report_steps, evaluate_steps: how often; with a budget, evaluations go by time.
        n_threads: of torch; 0 = all.
    """

    n_steps: int = 4
    keep_rows: float = 0.6
    step_decay: float = 1.0
    hard_share: float = 0.5
    same_noise: bool = False
    token_loss: float = 1.0
    state_loss: float = 0.0
    noise: float = 0.0
    epochs: int = 3
    patience: int = 12
    n_sequences: int = 12
    n_ctx: int = 1216
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    held_out: int = 40
    n_watched: int = 64
    checkpoint_steps: int = 200
    report_steps: int = 20
    evaluate_steps: int = 200
    n_threads: int = 0

    def __post_init__(self) -> None:
        _check(1 <= self.n_steps <= 16, "n_steps", self.n_steps, "1..16")
        _check(0 < self.keep_rows <= 1, "keep_rows", self.keep_rows, "above 0, at most 1")
        _check(0 < self.step_decay <= 1, "step_decay", self.step_decay, "above 0, at most 1")
        _check(0 <= self.hard_share <= 1, "hard_share", self.hard_share, "0..1")
        for name in ("token_loss", "state_loss", "noise"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _check(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        _check(self.patience >= 0, "patience", self.patience, "0 or more")
        _check(self.n_sequences >= 1, "n_sequences", self.n_sequences, "at least 1")
        _check(self.n_ctx >= 8, "n_ctx", self.n_ctx, "at least 8")
        _check(self.learning_rate > 0, "learning_rate", self.learning_rate, "positive")
        _check(self.held_out >= 2, "held_out", self.held_out, "at least 2")
        for name in ("checkpoint_steps", "report_steps", "evaluate_steps"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")


@dataclass(frozen=True, slots=True)
class EvaluationParams:
    """What the finished head is measured on, through the engine.

    Attributes:
        n_prompts: held-out prompts.
        max_tokens: generated for each.
        questions: a folder of question sets; empty for none.
        sets: of them; empty for all.
        limit: questions of each set; 0 = all.
        question_tokens: generated for each question.
    """

    n_prompts: int = 16
    max_tokens: int = 96
    questions: str = ""
    sets: tuple[str, ...] = ()
    limit: int = 0
    question_tokens: int = 128


@dataclass(frozen=True, slots=True)
class TrainParams:
    """One run: a target file, a folder for all it makes, a seed, the recipe's name, and the three parts above.

    ``start_from`` is a head to go on from, a GGUF or a checkpoint's folder: its shape and draft vocabulary are taken
    over and ``head`` is not used; empty starts a new one. ``start_vocab`` keeps only so many of its tokens, those said
    most often, 0 all of them. ``budget_seconds`` is the time for all of it, 0 for no limit. ``online`` stores no
    features and has the target read each batch again.
    """

    target: str
    output: str
    seed: int = 0
    start_from: str = ""
    start_vocab: int = 0
    recipe: str = "eagle3"
    budget_seconds: float = 0.0
    online: bool = False
    data: DataParams = dataclasses.field(default_factory=DataParams)
    head: HeadParams = dataclasses.field(default_factory=HeadParams)
    loop: LoopParams = dataclasses.field(default_factory=LoopParams)
    evaluation: EvaluationParams = dataclasses.field(default_factory=EvaluationParams)

    def __post_init__(self) -> None:
        budget = self.budget_seconds
        _check(self.start_vocab >= 0, "start_vocab", self.start_vocab, "0 or more")
        _check(budget == 0 or budget >= MIN_BUDGET, "budget_seconds", budget, f"at least {MIN_BUDGET}, or 0 for none")

    def save(self, path: Path) -> None:
        """Write the settings as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> TrainParams:
        """The settings in ``path``.

        Raises:
            EagleEdgeError: the file is not one that ``save`` wrote.
        """
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            parts = {"data": DataParams, "head": HeadParams, "loop": LoopParams, "evaluation": EvaluationParams}
            values.get("loop", {}).pop("budget_seconds", None)  # older runs had a budget for training alone
            built = {name: part(**_tuples(values.pop(name, {}))) for name, part in parts.items()}
            return cls(**values, **built)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise EagleEdgeError(f"{path}: not the settings of a training run ({error})") from None


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _check(ok: bool, name: str, value: object, wanted: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
