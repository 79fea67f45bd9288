"""How far a training run is, on standard error: bars on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ..train.watching import Report

__all__ = ["TrainProgress"]

# Between two lines of one stage where there is no terminal.
LINE_SECONDS = 15.0


class TrainProgress:
    """One bar or line for each stage, with the time left in it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._stream, self._terminal = stream, stream.isatty()
        self._bar = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(file=stream),
        )
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, tuple[float, float]] = {}  # stage: when, and how far it was then
        self._said: dict[str, float] = {}
        self._acceptance = ""

    def __enter__(self) -> TrainProgress:
        if self._terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._terminal:
            self._bar.stop()

    def stage(self, name: str, done: float, text: str) -> None:
        """Show how far a stage is."""
        if not self._terminal:
            self._line(name, done, text)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=1.0, text=text)
        self._bar.update(self._tasks[name], completed=done, text=text)

    def report(self, report: Report) -> None:
        """Show where the training loop is."""
        if report.acceptance is not None:
            rates = " ".join(f"{rate:.2f}" for rate in report.acceptance.first)
            self._acceptance = f"acceptance by depth {rates}"
        loss = f"loss {report.loss:.3f}" if report.loss == report.loss else ""
        parts = (f"{report.tokens / max(report.seconds, 1e-9):.0f} tokens/s", loss, self._acceptance)
        self.stage("training", report.done, "  ".join(part for part in parts if part))

    def _line(self, name: str, done: float, text: str) -> None:
        now = time.monotonic()
        when, before = self._began.setdefault(name, (now, done))
        if done < 1 and now - self._said.get(name, float("-inf")) < LINE_SECONDS:
            return
        self._said[name] = now
        left = f", {(now - when) * (1 - done) / (done - before):.0f} s left" if before < done < 1 else ""
        print(f"{name:10} {done:4.0%}{left}  {text}", file=self._stream, flush=True)
