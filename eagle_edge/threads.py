"""How many CPU threads an evaluation should use while other programs keep cores busy.

ggml's threads meet at a barrier after every operation, hundreds of times a token. One that waits for its core behind
another program holds all of them up: on two cores with two busy neighbours a token takes up to 70 times as long. Fewer
threads than free cores lose little and wait for nobody.
"""

from __future__ import annotations

import os

__all__ = ["Governor", "physical_cores"]

_WEIGHT = 0.25  # of the newest sample in the running average


def physical_cores() -> int:
    """The physical cores this process may run on; hyper-threads slow matrix products down."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as siblings:
                cores.add(siblings.read().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


class Governor:
    """Recommends a thread count from what the kernel says is runnable; always ``n_threads`` where it does not say.

    Args:
        n_threads: the most threads, used while the machine is ours.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._n_cores = max(n_threads, physical_cores())
        self._busy = 0.0
        try:
            self._file = os.open("/proc/loadavg", os.O_RDONLY) if n_threads > 1 else -1
        except OSError:
            self._file = -1

    def choose(self) -> int:
        """Threads for the next evaluation; call it while the own threads rest."""
        if self._file < 0:
            return self.n_threads
        runnable = int(os.pread(self._file, 64, 0).split()[3].split(b"/")[0])
        self._busy += _WEIGHT * (max(0, runnable - 1) - self._busy)
        free = self._n_cores - round(self._busy)
        return min(self.n_threads, max(1, free))

    def close(self) -> None:
        """Let go of the kernel's file; closing again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
