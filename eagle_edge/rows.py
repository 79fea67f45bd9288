"""What an evaluation of n rows costs with native kernels and with llama.cpp's, measured side by side.

Each choice of kernels lives in a process of its own, since a process keeps the kernels its first model was loaded
with. The two take turns, so that both see the same neighbours; only one computes at a time. It knows nothing of heads.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .config import TargetParams
from .gguf_header import read_header
from .kernels import KernelMode, choose_kernels, kernel_path, settle_weights
from .native import call, ffi, lib
from .target import Target
from .threads import physical_cores
from .tree import chain

__all__ = ["DEFAULT_ROWS", "Limits", "measure_limits", "measure_rows", "weight_type"]

DEFAULT_ROWS = (1, 2, 4, 8, 16, 32, 64, 512)
_KERNELS = ("llama.cpp", "native")
_SETTLING_S = 60.0  # that the weights of a model may take, at most, before they are timed
_PREFILL = 254  # more rows than a tree may have are a prefill, without logits


def measure_rows(
    target_path: str | os.PathLike[str],
    ns: Sequence[int] = DEFAULT_ROWS,
    *,
    n_past: int = 200,
    repeats: int = 15,
    n_threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """One row per choice of kernels and n: ``kernels``, ``type``, ``n``, and ``ms``, the median of ``repeats`` turns.

    A turn evaluates twice and times the second, as decoding finds caches and threads when it goes on and on.

    ``best_ms`` is the fastest turn, which other programs disturb least. ``path`` is the instruction set native kernels
    ran on; without any they are left out.

    Args:
        target_path: the GGUF file.
        ns: rows of one evaluation, 1..512; more than 254 are evaluated as a prefill, without logits.
        n_past: committed tokens the rows come after.
        repeats: turns of either choice, after one that is not counted; fewer beyond 16 rows.
        n_threads: CPU threads; None takes the physical cores.
        progress: called with each n before it is measured.

    Raises:
        ValueError: an n is out of range.
        FileFormatError: the file is missing or broken.
    """
    bad = [n for n in ns if not 1 <= n <= 512]
    if bad:
        raise ValueError(f"rows must be between 1 and 512, got {bad[0]}")
    kind = weight_type(target_path)
    workers = [_Worker(target_path, kernels, n_past, n_threads) for kernels in _KERNELS]
    try:
        workers = [worker for worker in workers if worker.kernels != "native" or worker.path]
        rows = []
        for n in ns:
            if progress is not None:
                progress(n)
            n_turns = 1 + max(min(repeats, 3), repeats * 16 // max(16, n))
            turns = [[worker.evaluate(n) for worker in workers] for _ in range(n_turns)][1:]
            for worker, ms in zip(workers, zip(*turns, strict=True), strict=True):
                rows.append(
                    {
                        "kernels": worker.kernels,
                        "path": worker.path,
                        "type": kind,
                        "n": n,
                        "ms": round(statistics.median(ms), 3),
                        "best_ms": round(min(ms), 3),
                    }
                )
        return rows
    finally:
        for worker in workers:
            worker.close()


def weight_type(path: str | os.PathLike[str]) -> str:
    """The ggml type most bytes of the file's matrices have."""
    sizes: Counter[str] = Counter()
    for tensor in read_header(os.fspath(path)).tensors.values():
        if len(tensor.shape) > 1 and tensor.name != "token_embd.weight":
            sizes[tensor.type_name] += tensor.n_bytes
    return sizes.most_common(1)[0][0] if sizes else "unknown"


@dataclass(frozen=True, slots=True)
class Limits:
    """What no kernel can beat here: ``bytes_per_s`` read by all threads, and ``products_per_s`` of bytes."""

    bytes_per_s: float
    products_per_s: float

    def or_better(self, other: Limits) -> Limits:
        """The higher of two measurements: what other programs take away is no limit."""
        return Limits(max(self.bytes_per_s, other.bytes_per_s), max(self.products_per_s, other.products_per_s))

    def ms(self, path: str | os.PathLike[str], n: int) -> float:
        """Milliseconds of n rows if all matrices came at full speed and every instruction were a product.

        Weights of 16 bits are bounded by their bytes alone: their products are not products of bytes.
        """
        n_bytes, n_products = 0, 0
        tensors = read_header(os.fspath(path)).tensors
        for tensor in tensors.values():
            tied = "output.weight" not in tensors and tensor.name == "token_embd.weight"
            last = tied or tensor.name == "output.weight"
            if len(tensor.shape) > 1 and (tied or tensor.name != "token_embd.weight") and not (last and n > _PREFILL):
                n_bytes += tensor.n_bytes
                n_products += 0 if tensor.type_name in ("F16", "BF16", "F32") else tensor.shape[0] * tensor.shape[1]
        return 1000 * max(n_bytes / self.bytes_per_s, n * n_products / (self.products_per_s or math.inf))


def measure_limits(path: str | os.PathLike[str], n_threads: int | None = None) -> Limits:
    """Memory is read from as many bytes as the file has, so a model that fits the caches is held to their speed."""
    choose_kernels("auto")
    out = ffi.new("double[2]")
    call(lib.ee_measure_limits, n_threads or physical_cores(), max(1 << 20, os.path.getsize(path)), out, out + 1)
    return Limits(out[0], out[1])


class _Worker:
    """A process with one choice of kernels, asked for one evaluation at a time."""

    def __init__(self, path: str | os.PathLike[str], kernels: str, n_past: int, n_threads: int | None) -> None:
        self.kernels = kernels
        settings = {"path": os.fspath(path), "kernels": kernels, "n_past": n_past, "n_threads": n_threads}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "eagle_edge.rows", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.path = str(self._read())

    def evaluate(self, n: int) -> float:
        """Milliseconds of one evaluation of ``n`` rows."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{n}\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process measuring {self.kernels} kernels ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _serve(settings: dict[str, Any]) -> None:
    """The worker's side: a JSON line with the kernel path, then one with milliseconds for every n that comes in."""
    extra = {} if settings["n_threads"] is None else {"n_threads": settings["n_threads"]}
    kernels: KernelMode = "auto" if settings["kernels"] == "native" else "llama.cpp"
    target = Target(
        settings["path"],
        TargetParams(n_ctx=2048, n_batch=512, max_nodes=_PREFILL, make_room=False, kernels=kernels, **extra),
    )
    random = np.random.default_rng(0)
    ids = random.integers(0, target.n_vocab, settings["n_past"], dtype=np.int32)
    for first in range(0, len(ids), 512):
        target.prefill(ids[first : first + 512])
    settle_weights(_SETTLING_S)
    _say(json.dumps(kernel_path() if settings["kernels"] == "native" else ""))
    for line in sys.stdin:
        n = int(line)
        tokens = random.integers(0, target.n_vocab, n, dtype=np.int32)
        for _ in range(2):
            start = time.perf_counter()
            if n > _PREFILL:
                target.prefill(tokens)
            else:
                target.eval_tree(chain(int(tokens[0]), tokens[1:]))
            elapsed = time.perf_counter() - start
            target.rewind(settings["n_past"])
        _say(json.dumps(elapsed * 1000))


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
