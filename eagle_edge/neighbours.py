"""Busy processes beside a measurement: a laptop always has some."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["busy_neighbours"]


@contextmanager
def busy_neighbours(n: int) -> Iterator[None]:
    """Keep ``n`` cores busy with a loop each while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
