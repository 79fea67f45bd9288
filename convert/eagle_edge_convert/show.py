"""Progress on a terminal: bytes, speed and the time that is left, on stderr."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

__all__ = ["ProgressBar"]


class ProgressBar:
    """One bar; call it with bytes done and bytes in all, ``stage`` begins it anew under another name."""

    def __init__(self, name: str) -> None:
        self.console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task(name, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show this many bytes."""
        self._progress.update(self._task, completed=done, total=total)

    def stage(self, text: str) -> None:
        """Print what happens now, and begin the bar anew."""
        self.console.print(text, highlight=False)
        self._progress.reset(self._task, description=text.split(":")[0], total=None)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._progress.stop()
