"""How many CPU threads an evaluation should use while other programs keep cores busy.

ggml's threads meet at a barrier after every operation, hundreds of times a token. One that waits for its core behind
another program holds all of them up: on two cores with two busy neighbours a token takes up to 70 times as long. Fewer
threads than free cores lose little and wait for nobody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

__all__ = ["Governor", "allowed_cpus", "physical_cores"]

_WINDOW_S = 0.25  # seconds between two looks at the processors


def allowed_cpus() -> set[int]:
    """The processors this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """The physical cores this process may run on; hyper-threads slow matrix products down."""
    cores = set()
    for cpu in allowed_cpus():
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as siblings:
                cores.add(siblings.read().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


class Governor:
    """Recommends a thread count from the time other programs took on our processors, as Linux accounts it.

    Elsewhere it always recommends ``n_threads``. Time is counted over a quarter of a second: a look at what is runnable
    now would take the terminal that shows the last word for a busy neighbour.

    Args:
        n_threads: the most threads, used while the machine is ours.
        clock, own_cpu, busy_cpu: sources of seconds, for tests: wall time, CPU time of this process, and time our
            processors were busy.
    """

    def __init__(
        self,
        n_threads: int,
        clock: Callable[[], float] = time.monotonic,
        own_cpu: Callable[[], float] = time.process_time,
        busy_cpu: Callable[[], float] | None = None,
    ) -> None:
        self.n_threads = n_threads
        self._n_cpus = len(allowed_cpus())
        self._clock, self._own_cpu = clock, own_cpu
        self._busy_cpu = busy_cpu or _busy_seconds
        self._chosen = n_threads
        self._last = self._look() if n_threads > 1 else None

    def choose(self) -> int:
        """Threads for the next evaluation."""
        if self._last is None or self._clock() - self._last[0] < _WINDOW_S:
            return self._chosen
        now = self._look()
        if now is not None:
            wall, own, busy = (new - old for new, old in zip(now, self._last, strict=True))
            free = self._n_cpus - round((busy - own) / wall)
            self._chosen = min(self.n_threads, max(1, free))
        self._last = now
        return self._chosen

    def _look(self) -> tuple[float, float, float] | None:
        try:
            return self._clock(), self._own_cpu(), self._busy_cpu()
        except (OSError, ValueError, IndexError):
            return None


def _busy_seconds() -> float:
    """Seconds our processors were not idle since boot (proc(5), /proc/stat: all but idle and iowait)."""
    wanted = {f"cpu{cpu}".encode() for cpu in allowed_cpus()}
    with open("/proc/stat", "rb") as file:
        lines = [line.split() for line in file.read().splitlines() if line.startswith(b"cpu")]
    ticks = sum(sum(map(int, line[1:4])) + sum(map(int, line[6:9])) for line in lines if line[0] in wanted)
    return ticks / os.sysconf("SC_CLK_TCK")
