"""What the machine could do at best, and what it takes: bytes a second from memory, joules."""

from __future__ import annotations

import os
from pathlib import Path

from ..gguf_header import read_header
from ..native import call, ffi, lib

__all__ = ["Energy", "read_bandwidth", "weight_bytes"]

_POWERCAP = Path("/sys/class/powercap")  # Linux's interface to RAPL, the energy counters of x86 processors


def weight_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes of the weights that evaluating one row reads: all tensors, less an embedding that is no output matrix."""
    tensors = read_header(os.fspath(path)).tensors
    looked_up = "token_embd.weight" if "output.weight" in tensors else ""
    return sum(tensor.n_bytes for tensor in tensors.values() if tensor.name != looked_up)


def read_bandwidth(n_bytes: int, n_threads: int) -> float:
    """Bytes a second that ``n_threads`` read of ``n_bytes``; the best of a few passes."""
    out = ffi.new("double[2]")
    call(lib.ee_measure_limits, n_threads, max(1 << 20, n_bytes), out, out + 1)
    return float(out[0])


class Energy:
    """Joules the processor packages have taken, where the system lets us read them.

    Args:
        folder: of the counters.
    """

    def __init__(self, folder: Path = _POWERCAP) -> None:
        packages = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        self._zones = [(zone / "energy_uj", _read(zone / "max_energy_range_uj")) for zone in packages]
        self.is_readable = bool(self._zones) and all(_read(path) is not None for path, _ in self._zones)

    def read(self) -> list[int]:
        """The counters, in microjoules."""
        return [_read(path) or 0 for path, _ in self._zones] if self.is_readable else []

    def since(self, before: list[int]) -> float | None:
        """Joules since ``before``; None where they cannot be read."""
        if not self.is_readable:
            return None
        spent = 0
        for now, old, (_, range_uj) in zip(self.read(), before, self._zones, strict=True):
            spent += now - old + ((range_uj or 0) if now < old else 0)  # a counter starts again at its range
        return spent / 1e6


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
