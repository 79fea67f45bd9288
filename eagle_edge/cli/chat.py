"""``eagle-edge chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ..config import SamplingParams
from ..equality import PLAIN
from ..errors import ContextFullError
from ..stats import Stats
from . import options as o
from .session import Session, open_session, stderr

HELP = """/reset         forget the conversation
/stats         figures of the last answer
/draft on|off  draft, or decode plainly
/help          this
/quit          leave (also Ctrl-D); Ctrl-C stops an answer"""


@o.command
def chat(
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option("-n", "--max-tokens", help="The most tokens of an answer.")] = None,
    *,
    pair: o.PairOptions,
    loading: o.TargetOptions,
    drafting: o.DraftOptions,
    sampling: o.SamplingOptions,
) -> None:
    """Chat with a model; its answers stream in, with a line of figures under each."""
    with open_session(pair, loading, drafting) as session:
        Conversation(session, sampling.params(max_tokens), system).run()


@dataclass(slots=True)
class Conversation:
    """The messages so far and what the next answer is made with."""

    session: Session
    params: SamplingParams
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)
    drafting: bool = True
    last: Stats | None = None

    def run(self) -> None:
        """Read and answer until the end of input or /quit."""
        self.reset()
        name = Path(self.session.engine.target.path).name
        stderr.print(
            f"{name}, {'without a' if self.session.engine.draft is None else 'with its'} head; /help for commands"
        )
        ask = _line_editor() if sys.stdin.isatty() else input
        while True:
            try:
                line = ask()
            except EOFError:
                return
            except KeyboardInterrupt:
                continue
            if line.strip() == "/quit":
                return
            if line.startswith("/"):
                self.command(line.split())
            elif line.strip():
                self.answer(line)

    def command(self, words: list[str]) -> None:
        """One line that starts with a slash."""
        if words == ["/reset"]:
            self.reset()
            stderr.print("the conversation is empty")
        elif words == ["/stats"]:
            stderr.print(self.figures())
        elif words[0] == "/draft" and words[1:] in (["on"], ["off"]):
            self.drafting = words[1] == "on"
            stderr.print(f"drafting is {words[1]}" if self.session.engine.draft else "there is no head to draft with")
        else:
            stderr.print(HELP)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def answer(self, text: str) -> None:
        """Stream the answer to one user message; Ctrl-C keeps what has come."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        engine = self.session.engine
        steps = engine.generate(self.session.encode(self.messages), self.params, None if self.drafting else PLAIN)
        try:
            for step in steps:
                pieces.append(step.text)
                print(step.text, end="", flush=True)
        except KeyboardInterrupt:
            steps.close()
        except ContextFullError as error:
            self.messages.pop()
            stderr.print(f"{error}; or start again with /reset")
            return
        print()
        self.last = engine.stats
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        stderr.print(self.session.summary(self.last), style="dim")

    def figures(self) -> str:
        """Several lines about the last answer."""
        if self.last is None:
            return "no answer yet"
        lines = [self.session.summary(self.last)]
        lines.append("  ".join(f"{phase} {seconds:.2f} s" for phase, seconds in self.last.seconds.items()))
        if self.last.draft_n:
            depths = ", ".join(f"{share:.0%}" for share in self.last.accept_by_depth)
            lines.append(f"{self.last.rounds} rounds; accepted by depth: {depths}")
        if self.session.engine.exactness is not None:
            lines.append(str(self.session.engine.exactness))
        return "\n".join(lines)


def _line_editor() -> Callable[[], str]:
    """Asks for a line that can be edited, and those before it found again."""
    from prompt_toolkit import PromptSession  # a tenth of a second that no other command needs
    from prompt_toolkit.formatted_text import HTML

    session: PromptSession[str] = PromptSession(erase_when_done=False)
    return lambda: session.prompt(HTML("<b>> </b>"))
