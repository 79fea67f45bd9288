"""What a command works with: an engine, its chat template, and the lines it shows on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from ..engine import Engine
from ..stats import Stats
from ..template import ChatTemplate
from .options import DraftOptions, PairOptions, TargetOptions

__all__ = ["Session", "open_session", "stderr"]

stderr = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Session:
    """An engine and how to talk to it."""

    engine: Engine
    template: ChatTemplate

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The ids of a conversation, ready for the assistant's next words."""
        return self.template.encode(messages)

    def raw(self, text: str) -> list[int]:
        """The ids of a text to go on with; control tokens in it are read as such."""
        return self.engine.target.tokenize(text, parse_special=True)

    @property
    def exact(self) -> bool | None:
        """Whether drafted rows were measured to equal plain ones; None where nothing is drafted."""
        return None if self.engine.exactness is None else self.engine.exactness.rows_equal

    def summary(self, stats: Stats) -> str:
        """One line of figures."""
        drafted = f", tau {stats.tau:.2f}, {stats.draft_n_accepted} of {stats.draft_n} drafted" if stats.draft_n else ""
        failed = f"; went on without the head: {stats.head_error}" if stats.head_error else ""
        return f"{stats.generated_n} tokens, {stats.tokens_per_second:.1f} tokens/s{drafted}{failed}"


@contextmanager
def open_session(pair: PairOptions, loading: TargetOptions, drafting: DraftOptions) -> Iterator[Session]:
    """Load a pair, showing that something happens, and free it at the end."""
    target, head = pair.files()
    with stderr.status(f"loading {target.name}") if sys.stderr.isatty() else _nothing():
        engine = Engine(
            target,
            None if drafting.no_draft else head,
            loading.params(),
            loading.exact,  # type: ignore[arg-type]  # checked there
            drafting.params(),
        )
    with engine:
        template = ChatTemplate.of(engine.target)
        if template.is_fallback:
            stderr.print(f"{target.name} has no chat template; ChatML stands in")
        yield Session(engine, template)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
